"""Knockout of a circuit: the relative change of its heads, and the random sets."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from rebinding.experiments.ablation import evaluate
from rebinding.experiments.circuit.measure import knock_out
from rebinding.experiments.random_draws import draw_circuits, has_heads_to_spare
from rebinding.experiments.tokens import token_batch
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.surgery.nnsight_surgeon import NNsightSurgeon
from tests.close import MIN_CHANGE_SHARE, allowance
from tests.experiments.circuit.test_ablation import ANSWERS, CIRCUIT, HEADS, IDS, setting

SMALL_CIRCUIT = Circuit((CircuitHead("A", 1, 1, "readout"), CircuitHead("A", 1, 3, "question_box")))
"""Two heads of one layer at two tokens: neither head is touched at the other's token."""


def run_without(surgeon: Any, prompts: list, means: list, circuits: dict[str, Circuit]) -> torch.Tensor:
    """The answer's logit: (circuit, prompt)."""
    rows = knock_out(surgeon, prompts, ANSWERS, IDS, circuits, means, block=2).rows
    return torch.stack([torch.tensor(rows[rows["circuit"] == name]["label_logit"].to_numpy()) for name in circuits])


def test_relative_change_from_heads_to_their_means() -> None:
    """At means that are the first prompt's own values nothing moves there; elsewhere the farthest head counts."""
    surgeon, prompts, _ = setting("llama")
    recorded = surgeon.record(token_batch(prompts), keep={"z"}).sites["z"]  # layer: (prompt, head, token, head_dim)
    means = [layer[0] for layer in recorded]
    for implementation in (surgeon, NNsightSurgeon(surgeon.model, surgeon.anatomy)):
        rows = knock_out(
            implementation, prompts, ANSWERS, IDS, {"some": CIRCUIT, "other": SMALL_CIRCUIT}, means, block=2
        ).rows
        table = rows.set_index(["circuit", "prompt"])["relative_change"]
        rounded = allowance(table, floor=1.0)
        for name, circuit in (("some", CIRCUIT), ("other", SMALL_CIRCUIT)):
            for place, number in enumerate(IDS):
                shares = []
                for head in circuit.heads:
                    at = prompts[place].roles[head.role]
                    value, mean = recorded[head.layer][place, head.head, at], means[head.layer][head.head, at]
                    shares.append(float((value - mean).abs().max() / torch.maximum(value.abs(), mean.abs()).max()))
                assert table[name, number] == pytest.approx(max(shares), abs=rounded)
                assert (table[name, number] > MIN_CHANGE_SHARE * rounded) == (place > 0)


def test_knockout_is_the_circuit_of_all_other_heads() -> None:
    """All heads at a token taken out is the circuit of all heads at every other token."""
    surgeon, prompts, means = setting("llama")
    for encoded in prompts:
        encoded.roles.update({f"token {place}": place for place in range(len(encoded))})
    end = prompts[0].roles["readout"]
    places = [(layer, head) for layer in range(surgeon.anatomy.n_layers) for head in range(surgeon.anatomy.n_heads)]
    removed = Circuit(tuple(CircuitHead("gone", *place, f"token {end}") for place in places))
    rest = Circuit(tuple(CircuitHead("rest", *place, f"token {at}") for place in places for at in range(end)))
    (knocked_out,) = run_without(surgeon, prompts, means, {"gone": removed})
    kept_logits = evaluate(surgeon, prompts, ANSWERS, IDS, {"rest": rest}, means, mean_set="test").rows["label_logit"]
    assert float((knocked_out - torch.tensor(kept_logits.to_numpy().copy())).abs().max()) <= allowance(
        knocked_out, floor=1.0
    )


def test_random_sets_are_of_other_heads() -> None:
    """As many at each role in each layer, none of them the circuit's; and it is known when there are not enough."""
    for circuit in draw_circuits(CIRCUIT, HEADS, draws=20, match="role_and_layer", exclude=True):
        assert sorted((head.layer, head.role) for head in circuit.heads) == sorted(
            (head.layer, head.role) for head in CIRCUIT.heads
        )
        assert not {(head.layer, head.head) for head in circuit.heads} & {
            (head.layer, head.head) for head in CIRCUIT.heads
        }
    assert has_heads_to_spare(CIRCUIT, HEADS)
    crowded = Circuit(tuple(CircuitHead("A", 0, head, "readout") for head in range(4)))
    assert not has_heads_to_spare(crowded, HEADS)
    assert has_heads_to_spare(crowded, tuple(product(range(4), range(8))))
