"""Mean ablation: measures by hand, its two ends, knockout, contributions, and what pruning and random circuits do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
import torch

from rebinding.experiments.circuit.measure import in_orders, walk
from rebinding.experiments.circuit.request import CONTRIBUTIONS, NOTHING, contributions, removed_sets, request_stream
from rebinding.experiments.circuit.summary import contribution
from rebinding.experiments.prompts import Stories
from rebinding.experiments.random_draws import draw_circuits, draw_sizes, has_heads_to_spare
from rebinding.experiments.tokens import Answers
from rebinding.models import load
from rebinding.paper.circuit import Circuit, CircuitError, CircuitHead
from rebinding.paper.procedure import builtin_procedure
from rebinding.planted import build
from rebinding.planted.circuit_variants import THREAD
from tests.experiments.setup import ANSWERS, CIRCUIT, HEADS
from tests.planted.runs import encoded as encoded_prompts
from tests.planted.runs import margins, plant


def test_the_lowest_token_wins_equal_logits_as_published() -> None:
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


def test_measures_are_those_worked_out_by_hand() -> None:
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


def test_pruning_removes_heads_that_add_less_than_the_step() -> None:
    """The published walk, on a score to which every head adds its weight; a drop to nothing is infinite in shares."""
    weights = dict(zip(CIRCUIT.heads, (1.0, 0.005, -2.0, 0.02, 0.0), strict=True))
    (pruned,) = walk([CIRCUIT], lambda circuits: [sum(weights[head] for head in c.heads) for c in circuits])
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


def test_random_circuits_have_the_size_that_is_asked_for() -> None:
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
    assert has_heads_to_spare(CIRCUIT, HEADS)
    assert not has_heads_to_spare(crowded, HEADS)
    assert has_heads_to_spare(crowded, tuple(product(range(4), range(8))))


A, B, C = (CircuitHead("A", 2, 0, "readout"), CircuitHead("A", 2, 1, "readout"), CircuitHead("B", 1, 0, "readout"))
TWINS = Circuit((A, B, C))
"""Either of A and B says what C found."""
PROMPTS = range(40)


def contributions_by_hand(circuits: Sequence[Circuit]) -> torch.Tensor:
    """C and one of the twins answer every prompt; anything less answers the first of four."""
    works = torch.tensor([C in circuit.heads and bool({A, B} & set(circuit.heads)) for circuit in circuits])
    lucky = torch.arange(len(PROMPTS)) % 4 == 0
    return (works[:, None] | lucky[None]).float()


def test_a_head_counts_where_its_twin_is_removed() -> None:
    """A twin contributes nothing to the full circuit, and everything if the other twin is removed."""
    sets = {NOTHING: (), "group A": (A, B), "group B": (C,)}
    result = contribution(CONTRIBUTIONS.evidence(contributions(TWINS, contributions_by_hand, sets, PROMPTS), {}), 0.01)
    means = {head: {name: float(values.mean()) for name, values in by_name.items()} for head, by_name in result.items()}
    assert means == {
        "A 2.0": {NOTHING: pytest.approx(-0.01), "group A": pytest.approx(1 - 1.01 * 0.25)},
        "A 2.1": {NOTHING: pytest.approx(-0.01), "group A": pytest.approx(1 - 1.01 * 0.25)},
        # without the twins only a quarter of the hits is left, which says nothing of B
        "B 1.0": {NOTHING: pytest.approx(1 - 1.01 * 0.25), "group B": pytest.approx(1 - 1.01 * 0.25)},
    }


def test_removed_sets_are_nothing_every_group_and_random_ones() -> None:
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


def test_a_thread_declares_one_head_of_each_step() -> None:
    """The planted model is the same; of its circuit five heads are declared, one from each step to the next."""
    thread, full, prompts = plant("pointer+thread"), plant("pointer"), encoded_prompts("published", 9)
    assert torch.equal(margins(thread, prompts), margins(full, prompts))
    declared = {(head.layer, head.head) for head in thread.circuit}
    assert declared == {thread.heads[line] for line in THREAD} < {(head.layer, head.head) for head in full.circuit}
    assert sorted(head.layer for head in thread.circuit) == [1, 2, 3, 4, 6]


def test_the_request_has_the_circuit_without_e() -> None:
    """Its heads of E are held like all others, and the stream is another at E's token in front of the layers of D."""
    heads = Circuit(build("pointer").circuit)
    prompts = Stories(load("planted:pointer").encoder())
    request = request_stream(
        prompts, prompts.design("published"), heads, 2, conventions=builtin_procedure("controlled").circuit
    )
    assert set(request.circuit) == {head for head in heads.heads if head.group != "E"} != set(heads.heads)
    assert request.layers == tuple(sorted({layer for layer, _ in heads.group("D")}))
    encoded = prompts.encode(request.prompts)
    clean, noise = encoded.prompts[0], encoded.counterfactuals[0]
    at, noise_at = clean.roles[request.role], noise.roles[request.role]
    assert clean.ids[at] == noise.ids[noise_at]
    assert at != noise_at
