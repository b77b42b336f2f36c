"""Shifted and exchanged queries and keys: who sees them, what is refused, and the same table from both surgeons."""

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
    PUBLISHED_CONDITIONS,
    QK_SOURCE,
    TABLE,
    every_pair,
)
from rebinding.experiments.binding.directions import Directions, edit_keys, read_vectors
from rebinding.experiments.binding.measure import run_exchange
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
from rebinding.paper.circuit import Circuit, CircuitHead, Head
from rebinding.paper.procedure import builtin_procedure
from rebinding.planted.tokenizer import build_tokenizer
from rebinding.surgery import Read, SurgeryError
from rebinding.surgery.sites import Scope
from rebinding.task.designs import design
from rebinding.task.prompts import Encoder
from tests.close import MIN_CHANGE_SHARE, allowance
from tests.experiments.binding.setup import SLOTS, Bench, planted, random_model
from tests.families.models import Family


def attention_change(bench: Bench, edited: Head, read: Head, scope: Scope) -> float:
    """The change of the attention of one head when the key of another is shifted at a label."""
    surgeon, prompts = bench.surgeon, bench.prompts("published", 2)
    label, readout = (positions(prompts, role)[:, None] for role in ("context_box[0]", "readout"))
    value = torch.ones(len(prompts), 1, 1, surgeon.anatomy.parts[edited[0]].head_dim)  # (prompt, head, token, head_dim)
    edit = edit_keys(surgeon.anatomy, [edited], value, at=label, scope=scope)
    (patterns,) = surgeon.sweep(
        surgeon.record(token_batch(prompts)), [[], [edit]], [Read("pattern", readout, [read])], allow_noop=True
    )
    return float((patterns[1] - patterns[0]).abs().max())


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_other_heads_of_a_kv_group_see_its_edited_keys_and_no_others(family: Family) -> None:
    """A head of the same KV group is affected if the group's keys are edited, and only then."""
    bench, layer, head = random_model(family), 2, 4
    group, n_heads = bench.surgeon.anatomy.parts[0].group, bench.surgeon.anatomy.n_heads
    bystander, stranger = (layer, head // group * group), (layer, (head + group) % n_heads)
    assert bystander != (layer, head)
    # runs that start at another token add up the same numbers in another order; attention is a share of one
    rounding = allowance(1.0)
    for scope, is_seen in (("group", True), ("head", False)):
        shared = attention_change(bench, (layer, head), bystander, scope)
        assert shared > MIN_CHANGE_SHARE * rounding if is_seen else shared < rounding
        assert attention_change(bench, (layer, head), stranger, scope) < rounding


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


@pytest.mark.parametrize(("family", "scope"), [("llama", "group"), ("gemma2", "head"), ("gemma3", "group")])
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
