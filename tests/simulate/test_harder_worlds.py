"""Worlds that are less kind than the paper's: conditions that are correlated, doubled spreads, a noise floor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fixtures.judging import judge_after_gates
from rebinding.experiments.ablation import VariantName
from rebinding.experiments.binding.summary import shift
from rebinding.experiments.circuit.summary import of_circuit
from rebinding.experiments.roles.summary import of_group
from rebinding.simulate.worlds import World, read_world, scale_spreads, world
from rebinding.study.study import Study
from rebinding.verdicts.estimates import Array
from tests.simulate.studies import make_study, row

HARDER = Path(__file__).with_name("harder")
BOUND = 4 / np.sqrt(300)
"""Four standard errors of the correlation of 300 independent pairs."""


def paper(**spreads: float) -> World:
    """The paper's world with other spreads."""
    base = world("paper", "gemma2-9b")
    return replace(base, spreads={**base.spreads, **spreads})


def binding(condition: str, measure: str, study: Study) -> Array:
    return shift(study.binding(row("binding.qk_cancels").claim), condition, measure)


def group(name: str, study: Study) -> Array:
    return of_group(study.roles(row("roles.b_is_the_pointer").claim, "pointer"), name, "pointed_object")


def margin(which: VariantName, study: Study) -> Array:
    return of_circuit(study.ablate_circuit(row("circuit.near_full").claim), which, "margin")


def correlate(first: Array, second: Array) -> float:
    return float(np.corrcoef(first, second)[0, 1])


PAIRS: dict[str, tuple[Callable[[Study], Array], Callable[[Study], Array], float]] = {
    "logits of Q and K": (partial(binding, "q", "dlogit"), partial(binding, "k_both", "dlogit"), 1.0),
    "logits of Q and Q+K": (partial(binding, "q", "dlogit"), partial(binding, "qk", "dlogit"), -1.0),
    "groups A and B": (partial(group, "A"), partial(group, "B"), -1.0),
    "groups A and C": (partial(group, "A"), partial(group, "C"), 1.0),
    "full model and circuit": (partial(margin, "full"), partial(margin, "circuit"), -1.0),
}
"""Two conditions on the same prompts, and their correlation where that of the world is -1."""


@pytest.mark.parametrize(("first", "second", "opposed"), PAIRS.values(), ids=PAIRS)
def test_conditions_have_the_correlation_of_their_world(
    first: Callable[[Study], Array], second: Callable[[Study], Array], opposed: float
) -> None:
    def measure(correlation: float) -> float:
        study = make_study(paper(correlation=correlation))
        return correlate(first(study), second(study))

    assert abs(measure(0.0)) < BOUND
    assert measure(0.5) == pytest.approx(0.5, abs=BOUND)
    assert (measure(1.0), measure(-1.0)) == pytest.approx((1.0, opposed))


@pytest.mark.parametrize(("correlation", "low", "high"), [(0.0, -BOUND, BOUND), (1.0, 0.7, 1.0), (-1.0, -1.0, -0.7)])
def test_shifts_of_attention_are_correlated(correlation: float, low: float, high: float) -> None:
    """Heads switch or stay, so no correlation is exact."""
    study = make_study(paper(correlation=correlation))
    assert low <= correlate(binding("q", "dR", study), binding("qk", "dR", study)) <= high


@pytest.mark.parametrize(
    ("measure", "mean"),
    [
        (partial(binding, "qk", "dR"), -0.1305445897744562),
        (partial(binding, "qk", "dlogit"), 1.7528340468010626),
        (partial(group, "B"), 6.93029520169076),
        (partial(margin, "circuit"), 2.578553472330791),
    ],
    ids=["attention by Q+K", "logits of Q+K", "group B", "circuit"],
)
def test_without_a_correlation_the_same_numbers_are_drawn(measure: Callable[[Study], Array], mean: float) -> None:
    """The means of seed 0 before worlds had a correlation and a floor."""
    assert measure(make_study(paper())).mean() == pytest.approx(mean, abs=1e-9)


@pytest.mark.parametrize(("floor", "gate"), [(0.12, None), (0.13, "noise_floor")])
def test_a_floor_of_more_than_half_of_the_margin_is_invalid(floor: float, gate: str | None) -> None:
    judged, study = row("binding.qk_cancels"), make_study(paper(floor=floor))
    verdict = judge_after_gates(judged.claim, study, judged.test)
    assert (verdict.gate, verdict.outcome == "INVALID") == (gate, gate is not None)


@pytest.mark.parametrize("measure", [partial(binding, "q", "dlogit"), partial(group, "B"), partial(margin, "circuit")])
def test_rounding_moves_every_prompt_alike_and_at_most_by_the_floor(measure: Callable[[Study], Array]) -> None:
    moved = measure(make_study(paper(floor=0.1))) - measure(make_study(paper()))
    assert np.ptp(moved) == pytest.approx(0.0, abs=1e-9)
    assert 0.0 < abs(moved[0]) <= 0.1


def test_factors_of_spreads_leave_correlation_and_floor() -> None:
    scaled = scale_spreads(paper(correlation=0.8, floor=0.1), 2.0).spreads
    assert (scaled["correlation"], scaled["floor"]) == (0.8, 0.1)


def test_the_file_doubles_every_declared_spread() -> None:
    spreads = read_world(HARDER / "doubled.toml").world("gemma2-9b").spreads
    assert spreads == scale_spreads(world("paper", "gemma2-9b"), 2.0).spreads
