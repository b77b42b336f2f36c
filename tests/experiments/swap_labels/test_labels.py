"""Which prompts keys at the swap's labels are requested on; the numbers are compared in `tests/oracles/by_hand`."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from rebinding.experiments.binding.swap_labels import (
    PROMPTS_OF_LABELS,
    label_shift,
    measure_label_exchange,
    named_slots,
    request_label_exchange,
)
from rebinding.experiments.prompts import Stories
from rebinding.experiments.workbench import Workbench
from rebinding.models import load
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.paper.procedure import builtin_procedure
from rebinding.planted.tokenizer import build_tokenizer
from rebinding.surgery import SurgeryError
from rebinding.task.designs import design
from rebinding.task.prompts import Encoder

ENCODER = Encoder(build_tokenizer())
HEADS = Circuit((CircuitHead("B", 5, 1, "readout"),))
READERS = Circuit((CircuitHead("B", 5, 6, "readout"),))
"""The head of `pointer+swap_reader` that matches slots at the swap's labels; in `pointer` it does nothing."""


def test_sets_of_directions_are_disjoint_and_name_every_slot_alike() -> None:
    prompts, conventions = Stories(ENCODER), builtin_procedure("controlled").binding
    request = request_label_exchange(prompts, prompts.design("published"), HEADS, 36, conventions=conventions)
    ids = Counter(number for batch in request.batches for number in batch.prompts.ids)
    assert len(request.batches) == conventions.batches
    assert set(ids.values()) == {1}
    for batch in request.batches:
        slot_counts = Counter(
            slot for encoded in prompts.encode(batch.prompts).prompts for slot in named_slots(encoded)
        )
        assert sum(slot_counts.values()) == 2 * PROMPTS_OF_LABELS
        assert max(slot_counts.values()) - min(slot_counts.values()) <= 4


def test_every_ordered_pair_of_slots_is_asked() -> None:
    prompts = Stories(ENCODER)
    conventions = builtin_procedure("controlled").binding
    request = request_label_exchange(prompts, prompts.design("published"), HEADS, 36, conventions=conventions)
    evaluation = prompts.encode(request.prompts).prompts
    pairs = Counter((encoded.prompt.answer_slot, encoded.prompt.query_slot) for encoded in evaluation)
    assert len(pairs) == 6
    assert all(i != j for i, j in pairs)
    assert set(pairs.values()) == {6}


def test_a_story_without_a_swap_is_refused() -> None:
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
