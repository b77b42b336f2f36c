"""Contributions with sets of heads removed: by hand, compared with circuits evaluated singly, and on a plant."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import pytest
import torch

from rebinding.evidence import Evidence
from rebinding.experiments.ablation import evaluate, measurer
from rebinding.experiments.circuit.request import CONTRIBUTIONS, NOTHING, contributions, removed_sets
from rebinding.experiments.circuit.summary import contribution
from rebinding.experiments.tokens import MEASURES
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.planted.circuit_variants import THREAD
from tests.close import allowance
from tests.experiments.circuit.test_ablation import ANSWERS, CIRCUIT, IDS, setting
from tests.planted.runs import encoded, margins, plant

A, B, C = (CircuitHead("A", 2, 0, "readout"), CircuitHead("A", 2, 1, "readout"), CircuitHead("B", 1, 0, "readout"))
TWINS = Circuit((A, B, C))
"""Either of A and B says what C found."""
PROMPTS = range(40)


def contributions_by_hand(circuits: Sequence[Circuit]) -> torch.Tensor:
    """C and one of the twins answer every prompt; anything less answers the first of four."""
    works = torch.tensor([C in circuit.heads and bool({A, B} & set(circuit.heads)) for circuit in circuits])
    lucky = torch.arange(len(PROMPTS)) % 4 == 0
    return (works[:, None] | lucky[None]).float()


def evidence(rows: pd.DataFrame) -> Evidence:
    return CONTRIBUTIONS.evidence(rows, {})


def test_twins_count_beside_each_other() -> None:
    """A twin contributes nothing to the full circuit, and everything if the other twin is removed."""
    sets = {NOTHING: (), "group A": (A, B), "group B": (C,)}
    result = contribution(evidence(contributions(TWINS, contributions_by_hand, sets, PROMPTS)), 0.01)
    means = {head: {name: float(values.mean()) for name, values in by_name.items()} for head, by_name in result.items()}
    assert means == {
        "A 2.0": {NOTHING: pytest.approx(-0.01), "group A": pytest.approx(1 - 1.01 * 0.25)},
        "A 2.1": {NOTHING: pytest.approx(-0.01), "group A": pytest.approx(1 - 1.01 * 0.25)},
        # without the twins only a quarter of the hits is left, which says nothing of B
        "B 1.0": {NOTHING: pytest.approx(1 - 1.01 * 0.25), "group B": pytest.approx(1 - 1.01 * 0.25)},
    }


def test_the_sets_are_declared() -> None:
    """Nothing, every group, and as many random ones as asked, each with about an eighth of the heads; reproducible."""
    large = Circuit(tuple(CircuitHead(group, 3, number, "readout") for group in "AB" for number in range(200)))
    result = removed_sets(large, 20)
    assert list(result)[:3] == [NOTHING, "group A", "group B"]
    assert len(result) == 23
    assert result[NOTHING] == ()
    assert result["group B"] == large.groups["B"]
    sizes = [len(result[f"random {number}"]) for number in range(20)]
    assert 900 <= sum(sizes) <= 1100, "expected 20 x 400 / 8 = 1000, more than three standard deviations wide"
    assert result == removed_sets(large, 20)


def test_no_circuit_is_run_twice() -> None:
    requested: list[Circuit] = []

    def counting(circuits: Sequence[Circuit]) -> torch.Tensor:
        requested.extend(circuits)
        return contributions_by_hand(circuits)

    rows = contributions(TWINS, counting, removed_sets(TWINS, 8), PROMPTS)
    assert len(requested) == len(set(requested))
    assert len(rows) == 11 * 3 * len(PROMPTS)


def test_every_pair_is_what_two_evaluations_say() -> None:
    """On a model: with and without each head, beside every set, against circuits that are written down one by one."""
    surgeon, prompts, means = setting("gemma2")
    removed = removed_sets(CIRCUIT, 3)
    column = MEASURES.index("label_logit")  # hits would hardly tell circuits apart here
    run = measurer(surgeon, prompts, ANSWERS, means)
    rows = contributions(CIRCUIT, lambda circuits: run(circuits)[..., column], removed, IDS)
    plain: dict[str, Circuit] = {}
    for name, set_heads in removed.items():
        for head in CIRCUIT.heads:
            rest = [member for member in CIRCUIT.heads if member not in set_heads and member != head]
            plain[f"{name} {head.group} before"] = Circuit((*rest, head))
            plain[f"{name} {head.group} without"] = Circuit(tuple(rest))
    table = evaluate(surgeon, prompts, ANSWERS, IDS, plain, means, mean_set="test").rows
    expected = table.pivot(index="prompt", columns="circuit", values="label_logit")
    assert len(rows) == len(removed) * len(CIRCUIT.heads) * len(IDS)
    for (name, group), part in rows.groupby(["removed_set", "group"]):
        for moment in ("before", "without"):
            means_by_hand = expected.loc[part["prompt"], f"{name} {group} {moment}"].to_numpy()
            assert abs(part[moment].to_numpy() - means_by_hand).max() <= allowance(means_by_hand, floor=1.0)


def test_a_declared_thread() -> None:
    """The planted model is the same; of its circuit five heads are declared, one from each step to the next."""
    thread, full, prompts = plant("pointer+thread"), plant("pointer"), encoded("published", 9)
    assert torch.equal(margins(thread, prompts), margins(full, prompts))
    declared = {(head.layer, head.head) for head in thread.circuit}
    assert declared == {thread.heads[line] for line in THREAD} < {(head.layer, head.head) for head in full.circuit}
    assert sorted(head.layer for head in thread.circuit) == [1, 2, 3, 4, 6]
