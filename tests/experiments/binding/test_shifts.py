"""Conditions of section 5: what they add, which differ between text and code, what is refused; and both surgeons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
import torch

from rebinding.evidence import Evidence
from rebinding.experiments.binding.conditions import (
    MATCHED_RANDOM,
    POOLED,
    POOLED_KEYS,
    PUBLISHED_CONDITIONS,
    PUBLISHED_RANDOM,
    QK,
    QK_SOURCE,
    SOURCE,
    TABLE,
    Condition,
    RowConditions,
    Shift,
    every_pair,
    row_conditions,
    shift_of,
)
from rebinding.experiments.binding.directions import (
    KINDS,
    Directions,
    measure_directions,
    read_vectors,
    shared_keys,
)
from rebinding.experiments.binding.measure import run_exchange
from rebinding.experiments.binding.request import VARIATIONS, request_shifts
from rebinding.experiments.binding.swap_labels import (
    PROMPTS_OF_LABELS,
    label_shift,
    measure_label_exchange,
    named_slots,
    request_label_exchange,
)
from rebinding.experiments.prompts import Stories
from rebinding.experiments.tokens import positions, token_batch
from rebinding.experiments.workbench import Workbench
from rebinding.models import load
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.paper.procedure import BY_PROCEDURE, CHOICE_NAMES, OPEN, RELEASED, BindingConventions, builtin_procedure
from rebinding.planted.tokenizer import build_tokenizer
from rebinding.surgery import Read, SurgeryError
from rebinding.surgery.sites import Scope
from rebinding.task.designs import design
from rebinding.task.prompts import Encoder
from tests.close import MIN_CHANGE_SHARE, allowance
from tests.experiments.setup import SLOTS, planted, random_model
from tests.families.models import Family

PUBLISHED, CONTROLLED = (builtin_procedure(name).binding for name in ("published", "controlled"))
SOURCE_CHOICE, BOTH_CHOICE = CHOICE_NAMES["source"], CHOICE_NAMES["both"]
HEADS_OF_KEYS = ((1, 0), (1, 2), (2, 4))
"""The first two share a KV head in the random models, where three query heads do."""

ANATOMY = random_model("llama").surgeon.anatomy
DICE = torch.Generator().manual_seed(5)
DIRECTIONS = Directions(
    HEADS_OF_KEYS, torch.randn(3, 3, 10, generator=DICE), torch.randn(len(KINDS), 3, 3, 10, generator=DICE)
)
FROM, TARGET = torch.tensor([1, 0, 2]), torch.tensor([0, 2, 1])


def shift(condition: Condition, scope: str = "head", draws: int = 4) -> Shift:
    return shift_of(condition, DIRECTIONS, ANATOMY, FROM, TARGET, scope=scope, draws=draws, seed=3)


@pytest.mark.parametrize("scope", ["group", "head"])
def test_matched_noise_keeps_the_norm_of_the_edit_that_acts(scope: str) -> None:
    """After averaging over the heads that share a key, where the published vectors lose a part of their norm."""
    real, matched, published = shift(QK), shift(MATCHED_RANDOM[2], scope), shift(PUBLISHED_RANDOM[2])

    def acting(vectors: torch.Tensor) -> torch.Tensor:
        assert shared_keys(ANATOMY, HEADS_OF_KEYS) == {(1, 0): [0, 1], (2, 1): [2]}
        return vectors.flatten(0, 1)[:, :2].mean(1).norm(dim=-1)

    if scope == "group":
        torch.testing.assert_close(acting(matched.at_j), acting(real.at_j).repeat(4))
        assert not torch.allclose(acting(published.at_j), acting(real.at_j), rtol=0.01)
    else:
        torch.testing.assert_close(matched.at_j.norm(dim=-1), real.at_j.norm(dim=-1).expand(4, -1, -1))
    torch.testing.assert_close(matched.at_i, -matched.at_j)
    torch.testing.assert_close(matched.q.norm(dim=-1), real.q.norm(dim=-1).expand(4, -1, -1))
    assert not torch.allclose(matched.q[0], matched.q[1])


@pytest.mark.parametrize("slot", ["at_j", "at_i"])
def test_relative_change_is_the_largest_added_number(slot: str) -> None:
    """The first two heads have one key: what is meant for them cancels there, and each sees its own by itself."""
    vectors = torch.zeros(2, 3, len(HEADS_OF_KEYS), 10)  # (draw, case, head, head_dim)
    vectors[0, 1, 0, 4], vectors[0, 1, 1, 4] = 0.6, -0.6
    vectors[1, 2, 1, 7] = -0.8
    shifted = replace(Shift(None, None, None), **{slot: vectors})
    largest = float(DIRECTIONS.k.abs().max())
    by_head, by_group = (
        shifted.relative_change(DIRECTIONS, ANATOMY, HEADS_OF_KEYS, scope) * largest for scope in ("head", "group")
    )
    torch.testing.assert_close(by_head, torch.tensor([[0.0, 0.6, 0.0], [0.0, 0.0, 0.8]]))
    torch.testing.assert_close(by_group, torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 0.4]]))
    query = Shift(vectors, None, None).relative_change(DIRECTIONS, ANATOMY, HEADS_OF_KEYS, "group")
    torch.testing.assert_close(query * float(DIRECTIONS.q.abs().max()), by_head)  # nobody shares a query


def test_invalid_conditions_are_refused() -> None:
    with pytest.raises(SurgeryError, match="edits nothing"):
        Condition("none")
    invalid: Any = ((), ("box", "box"), ("box", "boxes"))
    for kinds in invalid:
        with pytest.raises(SurgeryError, match="one or both"):
            Condition("k", keys="both", kinds=kinds)
    bench = random_model("llama")
    with pytest.raises(SurgeryError, match="answer in slot 1, and no pair starts from there"):
        bench.binding("published", TABLE, n=2, pairs=((0, 1),))
    with pytest.raises(SurgeryError, match="different names"):
        bench.binding("published", [QK, QK], n=2)
    with pytest.raises(SurgeryError, match="answer in another slot"):
        measure_directions(bench.surgeon, dict.fromkeys(range(3), bench.prompts("published", 2)), HEADS_OF_KEYS)


@pytest.mark.parametrize(
    ("conventions", "read", "expected"),
    [
        (PUBLISHED, ("q", "k_both"), {RELEASED: ()}),
        (PUBLISHED, ("k_object", "qk"), {RELEASED: (), SOURCE_CHOICE: SOURCE, BOTH_CHOICE: POOLED}),
        (CONTROLLED, ("k_object", "qk"), {RELEASED: ()}),
        (
            replace(PUBLISHED, qk_keys=("source", "exchanged")),
            ("qk", "k_box"),
            {BY_PROCEDURE: SOURCE, CHOICE_NAMES["exchanged"]: (), BOTH_CHOICE: SOURCE + POOLED},
        ),
    ],
)
def test_a_candidate_differs_in_one_convention_about_the_rows_that_are_read(
    conventions: BindingConventions, read: tuple[str, ...], expected: dict[str, RowConditions]
) -> None:
    """The first choices of a procedure are its first candidate."""
    candidates = conventions.possible(read)
    assert {name: row_conditions(candidate) for name, candidate in candidates.items()} == expected
    assert set(OPEN["qk_keys"]) == dict(SOURCE).keys()
    assert set(OPEN["key_means"]) == dict(POOLED).keys()


def test_the_conditions_of_the_text_are_run_with_the_table() -> None:
    """Only in the variations for the two procedures; the others keep the released table."""
    prompts, heads = Stories(random_model("llama").encoder), Circuit((CircuitHead("B", 1, 0, "readout"),))
    read = {QK_SOURCE, *POOLED_KEYS}
    for name, variation in VARIATIONS.items():
        counts = {"n": 2, "directions": 2, "draws": 1}
        request = request_shifts(prompts, heads, "published", name, PUBLISHED, **counts)
        assert set(request.conditions) - set(variation.conditions) == (read if variation.candidates else set())
    assert [name for name, variation in VARIATIONS.items() if variation.candidates] == ["published", "controlled"]


@pytest.mark.parametrize("shared", [0, 1])
def test_a_shared_key_is_shifted_by_the_mean_of_what_is_meant_for_its_named_heads(shared: int) -> None:
    """Two readers are named; the third reads the same key."""
    bench, layer = random_model("gemma3"), 1
    size = bench.surgeon.anatomy.parts[0].group
    readers = tuple((layer, shared * size + member) for member in range(size))
    directions = replace(bench, heads=readers).directions("published", 4)
    for_two = directions.of(readers[:2])
    mean = for_two.k.mean(2, keepdim=True).expand(-1, -1, size, -1)  # (kind, slot, head, head_dim)
    expected = Directions(readers, torch.zeros_like(directions.q), mean)
    keys = [condition for condition in TABLE if condition.name.startswith("k_")]
    as_group = replace(bench, heads=readers[:2]).binding("published", keys, n=2, scope="group", directions=for_two)
    by_head = replace(bench, heads=readers).binding("published", keys, n=2, scope="head", directions=expected)
    of_named = by_head.rows[by_head.rows["head"].isin([head for _, head in readers[:2]])]
    after, before = (of_named.filter(like=moment).to_numpy() for moment in ("after_", "before_"))
    close = allowance(after, floor=1.0)  # attention is of size one, logits of a few
    assert abs(as_group.rows.filter(like="after_").to_numpy() - after).max() <= close
    assert abs(after - before).max() > MIN_CHANGE_SHARE * close


def test_each_head_has_the_key_that_it_reads() -> None:
    """Of two keys in one layer, in an order in which heads of another layer stand between."""
    bench = random_model("llama")
    surgeon, prompts, heads = bench.surgeon, bench.prompts("published", 2), ((1, 4), (2, 1), (1, 0), (1, 3))
    assert [surgeon.anatomy.parts[1].kv_head(head) for layer, head in heads if layer == 1] == [1, 0, 1]
    label = positions(prompts, "context_box[0]")[:, None]
    _, keys = read_vectors(surgeon, prompts, label, heads)  # (prompt, head, token, head_dim)
    for place, (layer, head) in enumerate(heads):
        key_head = surgeon.anatomy.parts[layer].kv_head(head)
        read = Read("k", at=label, head=[(layer, key_head)], scope="group")
        (expected,) = surgeon.run(surgeon.record(token_batch(prompts)), [], [read])
        torch.testing.assert_close(keys[:, [place]], expected, rtol=0, atol=allowance(expected.numpy()))


ALL_CONDITIONS = (*PUBLISHED_CONDITIONS, QK_SOURCE, *MATCHED_RANDOM)


@pytest.mark.parametrize(("family", "scope"), [("gemma2", "head"), ("gemma3", "group")])
def test_both_surgeons_give_the_same_table(family: Family, scope: Scope) -> None:
    """Every condition, on heads of which two share a KV head; no condition that leaves everything as it was."""
    by_torch, by_nnsight = (
        bench.binding("counterbalanced", ALL_CONDITIONS, n=2, scope=scope, draws=1)
        for bench in (random_model(family), random_model(family, oracle=True))
    )
    edited, clean = (by_torch.rows.filter(like=moment).to_numpy() for moment in ("after_", "before_"))
    close = allowance(clean, edited, floor=1.0)  # attention is of size one, logits of a few
    pd.testing.assert_frame_equal(by_torch.rows, by_nnsight.rows, check_exact=False, rtol=0, atol=close)
    assert by_torch.settings == by_nnsight.settings
    for condition, places in by_torch.rows.groupby("condition").indices.items():
        assert abs(edited[places] - clean[places]).max() > MIN_CHANGE_SHARE * close, f"{condition} changed nothing"


ENCODER = Encoder(build_tokenizer())
HEADS = Circuit((CircuitHead("B", 5, 1, "readout"),))
READERS = Circuit((CircuitHead("B", 5, 6, "readout"),))
"""The head of `pointer+swap_reader` that matches slots at the swap's labels; in `pointer` it does nothing."""


def test_label_exchange_is_balanced() -> None:
    """Sets of directions are disjoint and name every slot equally often; every ordered pair of slots is evaluated."""
    prompts, conventions = Stories(ENCODER), builtin_procedure("controlled").binding
    request = request_label_exchange(prompts, prompts.design("published"), HEADS, 36, conventions=conventions)
    ids = Counter(number for batch in request.batches for number in batch.prompts.ids)
    assert len(request.batches) == conventions.batches
    assert set(ids.values()) == {1}
    for batch in request.batches:
        slots = Counter(slot for encoded in prompts.encode(batch.prompts).prompts for slot in named_slots(encoded))
        assert sum(slots.values()) == 2 * PROMPTS_OF_LABELS
        assert max(slots.values()) - min(slots.values()) <= 4
    evaluation = [encoded.prompt for encoded in prompts.encode(request.prompts).prompts]
    pairs = Counter((prompt.answer_slot, prompt.query_slot) for prompt in evaluation)
    assert pairs == {(i, j): 6 for i in range(3) for j in range(3) if i != j}


def test_donors_of_exchanged_queries_are_the_same_story() -> None:
    bench, n = planted("pointer", "llama"), 2
    stories = design("counterbalanced", split="evaluation")

    def exchange(first: int, slots: Sequence[int]) -> Evidence:
        """Donors are the stories from `first` on, with the answer in these slots."""
        numbers = range(first, first + n)
        donors = [bench.encoder.encode(stories.direction(number, slot) for number in numbers) for slot in slots]
        prompts, token = bench.prompts("counterbalanced", n), bench.encoder.answer_token
        options: dict[str, Any] = {"donors": donors, "heads": bench.heads, "ids": range(n), "token": token}
        return run_exchange(bench.surgeon, prompts, pairs=every_pair(SLOTS), **options)

    with pytest.raises(SurgeryError, match="a donor for slot 0 is the prompt's own story"):
        exchange(1, range(SLOTS))
    with pytest.raises(SurgeryError, match="a donor for slot 0"):
        exchange(0, range(SLOTS)[::-1])


def test_label_exchange_refuses_a_story_without_a_swap() -> None:
    (prompt,) = ENCODER.encode([design("counterbalanced", operations=0).prompt(0)])
    with pytest.raises(SurgeryError, match="give stories with one swap"):
        named_slots(prompt)


def test_shifted_label_keys_turn_a_head_that_reads_them() -> None:
    """On a plant whose group B also matches slots at the swap's labels; on one whose B does not, nothing turns."""
    conventions = replace(builtin_procedure("controlled").binding, batches=2)
    shifts = {}
    for name in ("pointer+swap_reader", "pointer"):
        bench = Workbench(load(f"planted:{name}"))
        stories = bench.prompts.design("published")
        request = request_label_exchange(bench.prompts, stories, READERS, 12, conventions=conventions)
        shifts[name] = float(label_shift(measure_label_exchange(bench, request), "dR").mean())
    assert shifts["pointer+swap_reader"] > 1.0
    assert abs(shifts["pointer"]) < 0.1
