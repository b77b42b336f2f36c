"""Mean ablation: measures by hand, its two ends, and what pruning and random circuits do with it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import pytest
import torch

from rebinding.experiments.ablation import evaluate, mean_z
from rebinding.experiments.circuit.measure import in_orders, walk
from rebinding.experiments.random_draws import draw_circuits, draw_sizes
from rebinding.experiments.tokens import Answers, full_model
from rebinding.paper.circuit import Circuit, CircuitError, CircuitHead
from rebinding.surgery import TorchSurgeon, derive
from tests.close import MIN_CHANGE_SHARE, allowance
from tests.experiments.circuit.test_paths import ROLES, fake_prompts
from tests.surgery.models import Family, tiny, tokens

HEADS = tuple(product(range(4), range(6)))
ANSWERS = Answers(torch.tensor([[[5, 6], [7, 7], [8, 9]]]).repeat(3, 1, 1), torch.tensor([0, 1, 2]))
IDS = (10, 11, 12)
CIRCUIT = Circuit(
    (
        CircuitHead("A", 3, 2, "readout"),
        CircuitHead("B", 2, 5, "readout"),
        CircuitHead("C", 1, 0, "question_box"),
        CircuitHead("D", 0, 4, "swap_partner"),
        CircuitHead("E", 0, 3, "context_partner"),
    )
)


def test_equal_logits_are_the_lowest_tokens() -> None:
    """As published: the first largest among the candidates' tokens answers, whoever else has as much. Else nobody."""
    tokens = torch.tensor([[5, 6], [7, 7], [3, 9]]).repeat(5, 1, 1)  # (prompt, candidate, alias)
    logits = torch.zeros(5, 1, 10)
    for prompt, largest in enumerate(([6], [6, 9], [6, 3], [7, 6], [3, 5, 7])):
        logits[prompt, 0, largest] = 2.0
    answers, rows = Answers(tokens, torch.zeros(5, dtype=torch.long)), torch.arange(5)
    assert answers.take(rows)(logits, rows)[:, 2].tolist() == [1, 0, 0, 0, 0]
    lowest = replace(answers, lowest=True)
    assert lowest.take(rows)(logits, rows)[:, 2].tolist() == [1, 1, 0, 1, 0]
    assert lowest.of(slice(1, 3)).take(rows[:2])(logits[1:3], rows[:2])[:, 2].tolist() == [1, 0]
    shared = Answers(torch.tensor([[[5], [5]]]), torch.tensor([0]), lowest=True)
    row = torch.tensor([0])
    assert shared.take(row)(logits[:1], row)[:, 2].tolist() == [1], "an alias that two words share is the answer's too"


def setting(family: Family) -> tuple[TorchSurgeon, list, list]:
    """A tiny model, three prompts, and means over them and two others."""
    model = tiny(family)
    surgeon = TorchSurgeon(model, derive(model))
    prompts = fake_prompts(tokens(family, n=5), ROLES)
    return surgeon, prompts[:3], mean_z(surgeon, prompts, block=2)


def test_the_circuit_of_all_heads_is_the_model_and_the_empty_one_is_ablated() -> None:
    """The two ends; in between every group changes the result."""
    surgeon, prompts, means = setting("gemma2")
    anatomy = surgeon.anatomy
    for encoded in prompts:
        encoded.roles.update({f"token {place}": place for place in range(len(encoded))})
    every_head = Circuit(
        tuple(
            CircuitHead("all", layer, head, f"token {place}")
            for layer in range(anatomy.n_layers)
            for head in range(anatomy.n_heads)
            for place in range(len(prompts[0]))
        )
    )
    clean = full_model(surgeon, prompts, ANSWERS, IDS).rows
    complete = evaluate(surgeon, prompts, ANSWERS, IDS, {"all": every_head}, means, mean_set="test").rows
    bound = allowance(clean["label_logit"], floor=1.0)
    for measure in ("label_logit", "margin", "probability"):
        assert complete[measure].to_numpy() == pytest.approx(clean[measure].to_numpy(), abs=bound)
    assert clean["margin"].abs().min() > 2 * bound, "a hit would be a matter of rounding"
    assert (complete["hit"] == clean["hit"]).all()
    circuits = {"empty": Circuit(()), "some": CIRCUIT} | {
        name: CIRCUIT.without(CIRCUIT.groups[name]) for name in "ABCDE"
    }
    rows = evaluate(surgeon, prompts, ANSWERS, IDS, circuits, means, mean_set="test").rows
    logits = rows.pivot(index="circuit", columns="prompt", values="label_logit")
    for first, second in combinations(logits.to_numpy(), 2):
        assert abs(first - second).max() > MIN_CHANGE_SHARE * bound


def test_measures_by_hand() -> None:
    """Aliases count by their best, ties are no hit, probabilities sum over distinct aliases."""
    logits = torch.full((2, 1, 10), -20.0)
    logits[0, 0, [5, 6, 7, 8]] = torch.tensor([1.0, 3.0, 2.0, 0.0])
    logits[1, 0, [5, 7]] = torch.tensor([4.0, 4.0])
    result = ANSWERS.take(torch.tensor([0, 1]))(logits, torch.tensor([0, 1]))
    assert result[0, :3].tolist() == [3.0, 1.0, 1.0]
    assert result[1, :3].tolist() == [4.0, 0.0, 0.0]
    soft = torch.softmax(logits[:, 0], -1)
    assert float(result[0, 3]) == pytest.approx(float(soft[0, 5] + soft[0, 6]))
    assert float(result[1, 3]) == pytest.approx(float(soft[1, 7]))


def additive(weights: dict[CircuitHead, float], base: float = 0.0) -> Any:
    """A score to which every head adds its weight."""
    return lambda circuits: [base + sum(weights[head] for head in circuit.heads) for circuit in circuits]


def test_pruning_by_hand() -> None:
    """The published walk removes what adds less than the step."""
    weights = dict(zip(CIRCUIT.heads, (1.0, 0.005, -2.0, 0.02, 0.0), strict=True))
    (pruned,) = walk([CIRCUIT], additive(weights))
    assert [head.group for head in pruned.circuit.heads] == ["A", "D"]
    assert [round(trial.drop, 6) for trial in pruned.trials] == [1.0, 0.005, -2.0, 0.02, 0.0]
    assert [trial.removed for trial in pruned.trials] == [False, True, True, False, True]
    (emptied,) = walk([CIRCUIT], lambda circuits: [float(len(c.heads) == 5) for c in circuits], relative=True)
    assert emptied.trials[0].drop == float("inf")
    assert CIRCUIT.heads[0] in emptied.circuit.heads


def test_redundant_heads_depend_on_the_order() -> None:
    """Of two heads that do the same, the walk keeps the later one: the outcome differs over orders."""
    twins = CIRCUIT.heads[:2]
    result = walk(in_orders(CIRCUIT, 12), lambda circuits: [float(bool(set(twins) & set(c.heads))) for c in circuits])
    groups = [{head.group for head in circuit.circuit.heads} for circuit in result]
    assert groups[0] == {"B"}
    assert {"A"} in groups


def test_random_circuits_of_other_sizes() -> None:
    """So many heads at each role, without repetition, and all heads where there are no more."""
    for circuit in draw_sizes({"readout": 20, "question_box": 3, "swap_partner": 99}, HEADS, draws=3):
        counts = Counter(head.role for head in set(circuit.heads))
        assert counts == {"readout": 20, "question_box": 3, "swap_partner": len(HEADS)}
    first, second = draw_sizes({"readout": 5}, HEADS, draws=2)
    assert first != second


def test_random_circuits_match_roles_and_layers() -> None:
    """As many heads per role; per layer if asked; the circuit's own left out if asked; reproducible."""
    random_circuits = draw_circuits(CIRCUIT, HEADS, draws=200)
    roles = sorted(head.role for head in CIRCUIT.heads)
    assert all(sorted(head.role for head in circuit.heads) == roles for circuit in random_circuits)
    assert random_circuits == draw_circuits(CIRCUIT, HEADS, draws=200)
    heads = {(head.layer, head.head) for head in CIRCUIT.heads}
    hits = sum((head.layer, head.head) in heads for circuit in random_circuits for head in circuit.heads)
    assert 140 <= hits <= 280, "expected 1000 x 5 / 24 = 208, eight standard deviations wide"
    assert len({frozenset(circuit.heads) for circuit in random_circuits}) > 150, "of more than 24 ** 4 choices"
    exclusive = draw_circuits(CIRCUIT, HEADS, draws=50, exclude=True, match="role_and_layer")
    assert all((head.layer, head.head) not in heads for circuit in exclusive for head in circuit.heads)
    places = sorted((head.role, head.layer) for head in CIRCUIT.heads)
    assert all(sorted((head.role, head.layer) for head in circuit.heads) == places for circuit in exclusive)
    crowded = Circuit(tuple(CircuitHead("A", 0, head, "readout") for head in range(4)))
    with pytest.raises(CircuitError, match="only 2 are left"):
        draw_circuits(crowded, HEADS, draws=1, exclude=True, match="role_and_layer")
