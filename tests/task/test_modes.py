"""Tracing modes: the edits of the published table, their tokens, and what becomes of the answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebinding.task.boxes import labels_of
from rebinding.task.designs import DESIGNS, TRACING_MODES, DesignName, design
from rebinding.task.prompts import Encoder, Prompt, aligned
from rebinding.task.text import render_raw

# For the published design with three boxes (asked box 0, partner 1, remaining 2): the roles that differ, and the slot
# of the counterfactual's answer ("donor": an object from outside; None: no answer). Typed from the published table.
TABLE: dict[str, tuple[set[str], int | str | None]] = {
    "context_only": ({"context_box[0]"}, None),
    "swap_only": ({"swap_second"}, 0),
    "context_target_box": ({"context_box[1]"}, 0),
    "swap_target_box": ({"swap_first"}, 0),
    "swap_target_box_to_remaining_context_box": ({"swap_first"}, 2),
    "context_target_object_and_swap_target_box_to_remaining_context_box": ({"context_object[1]", "swap_first"}, 2),
    "context_target_box_and_swap_query_box": ({"context_box[1]", "swap_second"}, 0),
    "context_and_swap": ({"context_box[0]", "swap_second"}, None),
    "context_and_swap_target_box": ({"context_box[1]", "swap_first"}, 1),
    "target_box": ({"context_object[1]"}, "donor"),
    "query_box": ({"context_object[0]"}, 1),
    "context_target_object_and_swap_query_box": ({"context_object[1]", "swap_second"}, 0),
    "swap_target_object_with_remaining_context_object": ({"context_object[1]", "context_object[2]"}, 2),
    "swap_partner": ({"question_box"}, 0),
}


@pytest.mark.parametrize("mode", TABLE)
def test_a_mode_edits_the_published_words_only(encoder: Encoder, mode: str) -> None:
    roles, answer = TABLE[mode]
    for prompt_id in range(20):
        pair = design(split="test").tracing(prompt_id, mode)
        original, counterfactual = encoder.encode([pair.original, pair.counterfactual])
        assert pair.original == design(split="test").prompt(prompt_id)
        assert aligned(original, counterfactual) == tuple(sorted(original.roles[role] for role in roles))
        if answer is None:
            assert not pair.counterfactual.answerable
        elif answer == "donor":
            assert pair.counterfactual.answer not in pair.original.story.objects
        else:
            assert isinstance(answer, int)
            assert pair.counterfactual.answer == pair.original.story.objects[answer]


def test_the_table_has_every_mode() -> None:
    assert set(TRACING_MODES) == {*TABLE, "no_swap"}


@given(st.integers(0, 100_000), st.sampled_from(DESIGNS), st.sampled_from(sorted(TRACING_MODES)), st.integers(3, 6))
def test_a_mode_says_what_becomes_of_the_answer(prompt_id: int, name: DesignName, mode: str, boxes: int) -> None:
    declared = TRACING_MODES[mode]
    pair = design(name, boxes=boxes).tracing(prompt_id, mode)
    assert pair.changes_answer is declared.changes_answer
    assert pair.counterfactual.answerable is (declared.answer != "undefined")
    length = len(render_raw(pair.original).spans) == len(render_raw(pair.counterfactual).spans)
    assert length is declared.keeps_length


@given(st.integers(0, 100_000), st.sampled_from(sorted(TABLE)), st.sampled_from(["before", "after"]))
def test_a_distractor_changes_no_answer_and_is_never_edited(prompt_id: int, mode: str, distractor: str) -> None:
    plain = design(boxes=5).tracing(prompt_id, mode)
    distracted = design(boxes=5, distractor=distractor).tracing(prompt_id, mode)  # type: ignore[arg-type]  # one of two
    for plain_prompt, prompt in (
        (plain.original, distracted.original),
        (plain.counterfactual, distracted.counterfactual),
    ):
        assert plain_prompt.story.contents[:3] == prompt.story.contents[:3]
        assert _answer(plain_prompt) == _answer(prompt)
        extra = prompt.story.operations[0 if distractor == "before" else -1]
        assert labels_of(extra) == distracted.original.story.boxes[3:]
        assert prompt.operation == plain_prompt.operation


def test_removing_the_swap_leaves_the_story_without_operations() -> None:
    pair = design(boxes=5, distractor="after").tracing(7, "no_swap")
    assert pair.counterfactual.story.operations == ()
    assert pair.counterfactual.story.contents == pair.original.story.contents
    assert pair.counterfactual.answer == pair.original.story.objects[0]


def test_bystander_ids_are_traced_on_a_swapped_box() -> None:
    """In the counterbalanced design a third of the ids asks about a bystander; a mode needs a swapped box."""
    stories = design("counterbalanced")
    bystanders = [prompt_id for prompt_id in range(36) if stories.prompt(prompt_id).partner is None]
    assert len(bystanders) == 12
    for prompt_id in bystanders:
        pair = stories.tracing(prompt_id, "swap_only")
        assert pair.original.story == stories.prompt(prompt_id).story
        assert pair.original.partner is not None


def _answer(prompt: Prompt) -> str | None:
    return prompt.answer if prompt.answerable else None
