"""The quantities of the headline rows: what a reader expects to see, and what the judged number is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import pytest

from fixtures.judging import judge_after_gates
from tests.simulate.parts import headline_rows, world_of_case
from tests.simulate.studies import make_study, row

Means: TypeAlias = Mapping[str, float]
Judged: TypeAlias = Callable[[Means], set[float]]
"""What a row may have judged, from the means of its quantities: a difference for each of its parts."""
QUANTITIES: Mapping[str, tuple[tuple[str, ...], Judged]] = {
    "circuit.recovers_accuracy": (("measured",), lambda q: {q["measured"]}),
    "circuit.recovers_most": (
        ("circuit", "full model", "random circuits"),
        lambda q: {q["circuit"] - (q["full model"] + q["random circuits"]) / 2},
    ),
    "circuit.near_full": (
        ("circuit", "full model", "random circuits"),
        lambda q: {q["circuit"] - 0.75 * q["full model"]},
    ),
    "roles.b_is_the_pointer": (("B", "A", "C", "D"), lambda q: {q["B"] - q[group] for group in "ACD"}),
    "roles.b_raises_pointer": (
        ("pointer target", "new object"),
        lambda q: {q["pointer target"]} | {q["pointer target"] / 2 + sign * q["new object"] for sign in (-1, 1)},
    ),
    "binding.qk_cancels": (
        ("queries", "keys", "both"),
        lambda q: (
            {q["queries"], q["keys"], q["both"], -q["both"]}
            | {
                q[name] / share + sign * q["both"]
                for name in ("queries", "keys")
                for share in (2, 4)
                for sign in (-1, 1)
            }
        ),
    ),
    "binding.key_dominance": (
        ("queries", "keys", "both"),
        lambda q: (
            {q["keys"] + sign * q["queries"] for sign in (-1, 1)}
            | {q["keys"] / 2 + sign * q["queries"] for sign in (-1, 1)}
            | {q["both"], q["both"] - q["keys"] / 2}
        ),
    ),
    "tracing.readout_over_swap_period": (("readout", "swap's full stop"), lambda _: set()),  # judged by question
}
CASES = dict(reversed([*headline_rows()]))
"""The first model for every published headline row that the paper asserts of one."""


def test_every_headline_row_is_here() -> None:
    assert set(QUANTITIES) == set(CASES)


@pytest.mark.parametrize("id", QUANTITIES)
def test_a_headline_row_states_what_it_judged(id: str) -> None:
    """In a simulated run of the paper. Quantities have six digits, so their differences agree to 1e-4."""
    declared, study = row(id), make_study(world_of_case({"model": CASES[id]}))
    verdict = judge_after_gates(declared.claim, study, declared.test)
    names, judged = QUANTITIES[id]
    assert tuple(quantity.name for quantity in verdict.quantities) == names
    for quantity in verdict.quantities:
        assert quantity.low is not None
        assert quantity.high is not None
        assert quantity.low <= quantity.mean <= quantity.high
        assert quantity.n == verdict.n
        assert quantity.metric in declared.claim.metrics
    differences = judged({quantity.name: quantity.mean for quantity in verdict.quantities})
    assert verdict.measured is not None
    assert not differences or min(abs(verdict.measured - value) for value in differences) < 1e-4
