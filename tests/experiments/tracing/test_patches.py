"""Readout diagnostic and stored state: which questions, windows, spans and second prompts, and what a patch does.

The numbers are compared with full forwards in `tests/oracles/by_hand`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from rebinding.experiments.tracing.measure import diagnose, diagnose_questions, questions, span_of
from rebinding.experiments.tracing.request import (
    DONORS,
    SITES,
    StoredState,
    Window,
    request_stored_state,
    windows,
    windows_of_rules,
)
from rebinding.experiments.tracing.summary import becomes_other_object, gate_swap_moves
from rebinding.experiments.workbench import Workbench
from rebinding.models import load
from rebinding.paper.circuit import Circuit
from rebinding.paper.procedure import builtin_procedure
from tests.close import allowance
from tests.experiments.setup import published_design as plan
from tests.experiments.setup import small_encoder as encoder
from tests.experiments.setup import small_surgeon as surgeon

N = 6


@pytest.mark.parametrize("options", [{}, {"boxes": 5, "distractor": "after"}])
def test_every_question_has_another_answer_in_the_second_prompt(options: dict[str, object]) -> None:
    """The boxes of a distractor hold the same in both prompts; there is no margin to change."""
    items = questions(encoder(), plan(**options), 0)
    assert [item.name for item in items] == ["asked", "partner", "remaining"]
    assert all(item.pair.changes_answer for item in items)
    story = items[0].pair.original.prompt.story
    assert {item.pair.original.prompt.question for item in items} == set(story.boxes[:3])


def test_windows_are_short_ones_prefixes_and_suffixes() -> None:
    assert windows(3, 2) == [Window(0, 0), Window(0, 1), Window(0, 2), Window(1, 1), Window(1, 2), Window(2, 2)]
    assert len(windows(42)) == 42 + 36 + 1 + 1
    with pytest.raises(ValueError, match="window of 4 layers in a model of 3"):
        windows(3, 4)


def test_windows_of_rules_have_the_same_rows_alone() -> None:
    """Rules need two windows of all; a figure has the others. The readout is ':' in both prompts, so patching the first
    layer's input alone changes nothing."""
    items = [question for number in range(2) for question in questions(encoder(), plan(), number)]
    every = diagnose(surgeon(), encoder(), plan(), ids=range(2)).rows
    alone = diagnose_questions(surgeon(), items, windows_of_rules(4)).rows
    both = alone.merge(
        every, on=["prompt", "question", "place", "first", "last"], suffixes=("", "_of_all"), validate="one_to_one"
    )
    assert len(both) == len(alone) == len(items) * len(SITES) * 2
    rounding = 4 * allowance(both["base_margin"], floor=5.0)  # four logits, of size 5
    assert (both["change"] - both["change_of_all"]).abs().max() < rounding
    assert both["change"].abs().max() > 0.1, "nothing changes, so equality says nothing"
    first_layer = every[(every["place"] == "readout") & (every["last"] == 0)]
    assert len(first_layer) == len(items)
    assert first_layer["change"].abs().max() < rounding


@pytest.fixture(scope="module")
def bench() -> Workbench:
    return Workbench(load("planted:pointer@llama"))


def request_on(bench: Workbench) -> StoredState:
    conventions = builtin_procedure("controlled").tracing
    design = bench.prompts.design("published")
    return request_stored_state(bench.prompts, design, Circuit(()), N, conventions=conventions)


def test_second_prompts_have_the_same_swap_or_the_same_objects(bench: Workbench) -> None:
    """Spans of stored state begin with the swap; those of the question with the asked label."""
    encoded = bench.prompts.encode(request_on(bench).prompts)
    for number, (first, second) in enumerate(zip(encoded.prompts, encoded.counterfactuals, strict=True)):
        own, other = first.prompt.story, second.prompt.story
        if DONORS[number % 2] == "objects":
            assert own.operations == other.operations
            assert not set(own.objects) & set(other.objects)
        else:
            assert own.objects == other.objects
            assert own.operations != other.operations
        assert first.prompt.question == second.prompt.question
        assert first.prompt.answer != second.prompt.answer
        state, question = span_of(first, "state"), span_of(first, "question")
        assert first.pieces[state.start].strip("Ġ▁ ") == "Swap"
        assert (state.stop, question.start) == (first.roles["question_box"],) * 2
        assert question.stop == first.roles["readout"]


@pytest.mark.parametrize(("mechanism", "is_stored"), [("pointer", False), ("global", True)])
def test_where_objects_are_stored_they_change_the_answer(mechanism: str, is_stored: bool) -> None:
    bench = Workbench(load(f"planted:{mechanism}@llama"))
    evidence = bench.get(request_on(bench))
    for span in ("state", "question"):
        assert becomes_other_object(evidence, span).tolist() == [is_stored] * N


def test_tokens_of_another_swap_give_the_answer_of_that_swap(bench: Workbench) -> None:
    """The context is the same in both prompts, so from the swap on the run is that of the second prompt. A patch that
    does nothing fails the gate."""
    evidence = bench.get(request_on(bench))
    rows = evidence.rows[(evidence.rows["donor"] == "swap") & (evidence.rows["span"] == "state")]
    assert rows["second"].tolist() == [True] * N
    assert gate_swap_moves(evidence).passed
    gate = gate_swap_moves(replace(evidence, rows=evidence.rows.assign(own=True)))
    assert (gate.name, gate.passed) == ("swap_changes_answer", False)
