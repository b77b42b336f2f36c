"""The world of boxes: two independent ways to an answer, and what operations can and cannot do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebinding.task.boxes import Contains, Move, Operation, Put, Remove, Story, StoryError, Swap
from rebinding.task.words import LABELS, OBJECTS
from tests.task.stories import retrieved_slot, rho

from .stories import any_stories, follow, swap_stories, swaps

RABBIT = (Contains("R", "rabbit"), Contains("S", "sock"), Contains("T", "toy"))


@given(swap_stories())
def test_simulation_and_readout_permutation_give_the_same_answers(story: Story) -> None:
    for box in story.boxes:
        assert story.answer(box) == story.objects[retrieved_slot(story, box)]


@given(swap_stories(), st.data())
def test_a_swap_undoes_itself(story: Story, data: st.DataObject) -> None:
    first, second = data.draw(st.permutations(story.boxes))[:2]
    doubled = replace(story, operations=(*story.operations, Swap(first, second), Swap(second, first)))
    assert doubled.state() == story.state()


@given(swap_stories(), st.data())
def test_a_swap_exchanges_two_objects_and_touches_no_bystander(story: Story, data: st.DataObject) -> None:
    first, second = data.draw(st.permutations(story.boxes))[:2]
    after = replace(story, operations=(*story.operations, Swap(first, second)))
    assert (after.answer(first), after.answer(second)) == (story.answer(second), story.answer(first))
    bystanders = set(story.boxes) - {first, second}
    assert all(after.answer(box) == story.answer(box) for box in bystanders)


@given(swap_stories(), st.data())
def test_swaps_compose_as_permutations(story: Story, data: st.DataObject) -> None:
    """Doing A and then B reads a slot through B's permutation and then through A's."""
    extra = data.draw(swaps(story.boxes))
    combined = replace(story, operations=story.operations + extra)
    second = replace(story, operations=extra)
    for box in story.boxes:
        between = story.boxes[retrieved_slot(second, box)]
        assert retrieved_slot(combined, box) == retrieved_slot(story, between)
    assert sorted(map(str, combined.state().values())) == sorted(story.objects)


@given(any_stories())
def test_every_kind_of_operation_does_what_its_sentence_says(story: Story) -> None:
    contents: dict[str, str | None] = {statement.box: statement.object for statement in story.contents}
    for operation in story.operations:
        follow(contents, operation)
    assert story.state() == contents
    items = [content for content in contents.values() if content is not None]
    assert len(set(items)) == len(items)


def test_the_papers_example() -> None:
    story = Story(RABBIT, (Swap("S", "R"),))
    assert [story.answer(box) for box in "RST"] == ["sock", "rabbit", "toy"]
    assert [rho(0, 1)(slot) for slot in range(3)] == [1, 0, 2]
    assert [retrieved_slot(story, box) for box in "RST"] == [1, 0, 2]


def test_an_ignored_swap_changes_nothing_and_must_be_asked_for() -> None:
    swap = (Swap("S", "X"),)
    ignored = Story(RABBIT, swap, impossible="ignore")
    assert ignored.state() == Story(RABBIT).state()
    assert retrieved_slot(ignored, "S") == 1
    with pytest.raises(StoryError, match=r"there is no Box X; the boxes are R, S, T"):
        Story(RABBIT, swap)


IMPOSSIBLE: dict[str, tuple[tuple[Operation, ...], str]] = {
    "a box with itself": ((Swap("R", "R"),), "names Box R twice"),
    "into a full box": ((Move("R", "S"),), "Box S still holds the sock; remove it first"),
    "out of an empty box": ((Remove("rabbit", "R"), Move("R", "S")), "Box R is empty"),
    "put into a full box": ((Put("egg", "R"),), "Box R still holds the rabbit"),
    "put twice": ((Remove("rabbit", "R"), Put("sock", "R")), "the sock is already in a box"),
    "remove what is elsewhere": ((Remove("sock", "R"),), "Box R holds the rabbit"),
    "remove from an empty box": ((Remove("rabbit", "R"), Remove("rabbit", "R")), "Box R holds nothing"),
    "an absent box": ((Put("egg", "X"),), "there is no Box X"),
}


@pytest.mark.parametrize(("operations", "message"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_impossible_operations_are_refused(operations: tuple[Operation, ...], message: str) -> None:
    with pytest.raises(StoryError, match=message):
        Story(RABBIT, operations)


BAD_CONTENTS: dict[str, tuple[tuple[Contains, ...], str]] = {
    "one box": (RABBIT[:1], "1 boxes given; a story has 2 to 26"),
    "27 boxes": (tuple(map(Contains, (*LABELS, "AA"), OBJECTS)), "27 boxes given; a story has 2 to 26"),
    "box twice": ((*RABBIT, Contains("R", "egg")), "each box may occur once in a context; given twice: R"),
    "object twice": ((*RABBIT, Contains("U", "toy")), "each object may occur once in a context; given twice: toy"),
    "no word": ((*RABBIT, Contains("", "egg")), "'' cannot stand in a sentence"),
    "blanks": ((*RABBIT, Contains("U", " egg")), "' egg' cannot stand in a sentence"),
}


@pytest.mark.parametrize(("statements", "message"), BAD_CONTENTS.values(), ids=BAD_CONTENTS)
def test_contents_that_cannot_be_are_refused(statements: tuple[Contains, ...], message: str) -> None:
    with pytest.raises(StoryError, match=message):
        Story(statements)


def test_questions_without_an_answer_are_refused() -> None:
    story = Story(RABBIT, (Remove("toy", "T"),))
    with pytest.raises(StoryError, match="Box X is not in this story; its boxes are R, S, T"):
        story.answer("X")
    with pytest.raises(StoryError, match="Box T is empty at the end"):
        story.answer("T")
    with pytest.raises(StoryError, match="only stories made of swaps"):
        retrieved_slot(story, "R")
