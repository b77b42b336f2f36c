"""The world of boxes: two independent ways to an answer, what operations can and cannot do, words that ids draw."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebinding.task.boxes import Contains, Move, Operation, Put, Remove, Story, StoryError, Swap
from rebinding.task.words import LABELS, OBJECTS, DesignError, Split, Vocabulary, draw
from tests.task.stories import retrieved_slot, rho

from .stories import any_stories, follow, swap_stories, swaps

RABBIT = (Contains("R", "rabbit"), Contains("S", "sock"), Contains("T", "toy"))


@given(swap_stories())
def test_simulation_and_readout_permutation_give_the_same_answers(story: Story) -> None:
    for box in story.boxes:
        assert story.answer(box) == story.objects[retrieved_slot(story, box)]


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


# Words and draws: the published lists, splits and check vectors

# Split, id, the first three entities and the two donors after them, as regenerated independently of this project.
CHECK_VECTORS: list[tuple[Split, int, str, str]] = [
    ("train", 0, "B chemical, K shell, J boot", "F wheel, L rock"),
    ("train", 1, "I bread, M rose, A tea", "L disk, F cross"),
    ("train", 299, "B leaf, K boat, G watch", "L glass, M tie"),
    ("train", 10000, "F machine, D bill, H wire", "M clock, G chemical"),
    ("test", 0, "O guitar, X bell, W key", "S stone, Y coat"),
    ("test", 1, "V train, Z cup, N book", "Y ice, S phone"),
    ("test", 2, "W pot, Q map, T key", "Z plane, X file"),
    ("none", 0, "O machine, A plane, X engine", "S dress, G bell"),
]


@pytest.mark.parametrize(("split", "prompt_id", "entities", "donors"), CHECK_VECTORS)
def test_an_id_draws_the_published_words(split: Split, prompt_id: int, entities: str, donors: str) -> None:
    words = draw(Vocabulary().split(split), prompt_id)
    pairs = [f"{words.label(index)} {words.object(index)}" for index in range(5)]
    assert pairs == [*entities.split(", "), *donors.split(", ")]


def test_the_lists_and_their_halves() -> None:
    assert (len(LABELS), len(OBJECTS), len(set(OBJECTS))) == (26, 82, 82)
    train, test = Vocabulary().split("train"), Vocabulary().split("test")
    assert ("".join(train.labels), "".join(test.labels)) == ("ABCDEFGHIJKLM", "NOPQRSTUVWXYZ")
    assert (len(train.objects), train.objects[-1], test.objects[0]) == (41, "boot", "medicine")


def test_lists_shorter_than_four_are_never_split() -> None:
    short = Vocabulary(("A", "B", "C"), OBJECTS[:4])
    assert short.split("test") == Vocabulary(("A", "B", "C"), OBJECTS[2:4])
    assert short.split("train") == Vocabulary(("A", "B", "C"), OBJECTS[:2])


def test_thirds_are_disjoint_and_leave_nothing_out() -> None:
    thirds = [Vocabulary().split(name) for name in ("discovery", "directions", "evaluation")]
    assert sorted(word for third in thirds for word in third.labels) == sorted(LABELS)
    assert sorted(word for third in thirds for word in third.objects) == sorted(OBJECTS)
    assert min(len(third.labels) for third in thirds) >= 8


def test_the_filter_comes_before_the_split() -> None:
    vocabulary = Vocabulary().keep(lambda word: word not in ("egg", "fan"))
    assert vocabulary.labels == LABELS
    assert vocabulary.split("train").objects == OBJECTS[2:42]


@pytest.mark.parametrize("bad", [-1, 1.0, "3", True])
def test_an_id_is_a_whole_number_from_0_on(bad: object) -> None:
    with pytest.raises(DesignError, match="a prompt id is a whole number from 0 on"):
        draw(Vocabulary(), bad)  # type: ignore[arg-type]  # what the test is about


def test_running_out_of_words_says_how_many_there_are() -> None:
    words = draw(Vocabulary().split("train"), 0)
    with pytest.raises(DesignError, match="needs 14 different labels and the vocabulary of the design has 13"):
        words.label(13)
