"""The readout diagnostic: every question, every window, equal to hooked forward passes."""

from __future__ import annotations

import pytest

from rebinding.experiments.tokens import token_batch
from rebinding.experiments.tracing.measure import diagnose, diagnose_questions, questions
from rebinding.experiments.tracing.request import SITES, Window, windows, windows_of_rules
from tests.close import allowance
from tests.experiments.tracing.naive import final_logits, patched, residuals
from tests.experiments.tracing.small_model import encoder, model, plan, surgeon
from tests.surgery.models import Family


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_equals_hooked_forward_passes(family: Family) -> None:
    rows = diagnose(surgeon(family), encoder(), plan(), ids=range(2), width=2).rows
    of_prompt = rows[rows["prompt"] == 1]
    assert len(of_prompt) == 3 * len(SITES) * len(windows(4, 2))
    largest = 0.0
    for question in questions(encoder(), plan(), 1):
        pair = question.pair
        original, donor = (token_batch([side]) for side in (pair.original, pair.counterfactual))
        values, base = residuals(model(family), donor), final_logits(model(family), original)
        tokens = [pair.rival, pair.candidates[pair.answer]]
        for row in of_prompt[of_prompt["question"] == question.name].itertuples():
            token = pair.original.roles[row.place]
            writes = [(layer, token, values[layer][:, token]) for layer in range(row.first, row.last + 1)]
            rounding = 2 * allowance(base)  # a margin is a difference of two logits
            logits = patched(model(family), original, writes)[0, tokens]
            expected, unpatched = float(logits[0] - logits[1]), float(base[0, tokens[0]] - base[0, tokens[1]])
            assert row.margin == pytest.approx(expected, abs=rounding)
            assert row.base_margin == pytest.approx(unpatched, abs=rounding)
            assert row.change == pytest.approx(expected - unpatched, abs=2 * rounding)
            largest = max(largest, abs(expected - unpatched))
    assert largest > 0.1, "nothing changes, so equality says nothing"


def test_patching_the_readouts_embedding_is_a_noop() -> None:
    """It is ':' in both prompts, so patching the first layer's input alone changes nothing."""
    rows = diagnose(surgeon(), encoder(), plan(), ids=range(3)).rows
    first_layer = rows[(rows["place"] == "readout") & (rows["last"] == 0)]
    assert len(first_layer) == 9
    assert first_layer["change"].abs().max() < 4 * allowance(
        first_layer["base_margin"], floor=5.0
    )  # four logits, of size 5


def test_every_question_has_another_answer() -> None:
    items = questions(encoder(), plan(), 0)
    assert [item.name for item in items] == ["asked", "partner", "remaining"]
    assert all(item.pair.changes_answer for item in items)
    story = items[0].pair.original.prompt.story
    assert {item.pair.original.prompt.question for item in items} == set(story.boxes)


def test_five_boxes_ask_about_three() -> None:
    """The boxes of the distractor hold the same in both prompts; there is no margin to change."""
    items = questions(encoder(), plan(boxes=5, distractor="after"), 0)
    assert [item.name for item in items] == ["asked", "partner", "remaining"]
    story = items[0].pair.original.prompt.story
    assert {item.pair.original.prompt.question for item in items} == set(story.boxes[:3])


def test_windows() -> None:
    assert windows(3, 2) == [Window(0, 0), Window(0, 1), Window(0, 2), Window(1, 1), Window(1, 2), Window(2, 2)]
    assert len(windows(42)) == 42 + 36 + 1 + 1
    with pytest.raises(ValueError, match="window of 4 layers in a model of 3"):
        windows(3, 4)


def test_windows_of_rules_have_the_same_rows_alone() -> None:
    """Rules need two windows of all; a figure has the others."""
    items = [question for number in range(2) for question in questions(encoder(), plan(), number)]
    every = diagnose_questions(surgeon(), items, windows(4)).rows
    alone = diagnose_questions(surgeon(), items, windows_of_rules(4)).rows
    keys = ["prompt", "question", "place", "first", "last"]
    both = alone.merge(every, on=keys, suffixes=("", "_of_all"), validate="one_to_one")
    assert len(both) == len(alone) == len(items) * len(SITES) * 2
    difference = (both["change"] - both["change_of_all"]).abs().max()
    assert difference < 4 * allowance(both["base_margin"], floor=5.0)
    assert both["change"].abs().max() > 0.1, "nothing changes, so equality says nothing"
