"""Lessons: every case occurs, held-out words never do, and one order leaves one question out."""

from __future__ import annotations

from collections import Counter

import pytest

from rebinding.learned.lessons import BOXES, HELD_OUT, ORDERS, Order, lessons, words
from rebinding.task.boxes import Swap
from rebinding.task.text import Prompt
from rebinding.task.words import Vocabulary
from tests.task.stories import retrieved_slot

KNOWN = Vocabulary()
STEPS = 60


def many(order: Order) -> list[Prompt]:
    return [prompt for step in range(STEPS) for prompt in lessons(KNOWN, order, 0, step, 4)]


def place(prompt: Prompt) -> str:
    """How the last swap names the asked box."""
    match prompt.story.operations:
        case (*_, Swap(first, second)):
            return {first: "first", second: "second"}.get(prompt.question, "not")
    return "no swap"


def test_a_step_is_a_function_of_its_number() -> None:
    assert lessons(KNOWN, "all", 1, 5, 3) == lessons(KNOWN, "all", 1, 5, 3)
    given = [lessons(KNOWN, order, seed, step, 3) for order in ORDERS for seed in (0, 1) for step in (5, 6)]
    assert all(one != other for place, one in enumerate(given) for other in given[:place])


def test_words_held_out_never_occur_and_all_others_do() -> None:
    prompts, held = many("all"), KNOWN.split(HELD_OUT)
    labels = {label for one in prompts for label in one.story.boxes}
    objects = {thing for one in prompts for thing in one.story.objects}
    assert not labels & set(held.labels)
    assert not objects & set(held.objects)
    assert labels == set(words(KNOWN).labels)
    assert objects == set(words(KNOWN).objects)


def test_every_number_of_swaps_and_every_place_of_the_asked_box_occurs() -> None:
    prompts = many("all")
    assert {len(one.story.operations) for one in prompts} == {0, 1, 2}
    assert {(one.asked_slot, one.answer_slot) for one in prompts} == {
        (a, b) for a in range(BOXES) for b in range(BOXES)
    }
    seen = Counter(map(place, prompts))
    assert seen["first"] == seen["second"] == seen["not"] > 0
    assert Counter(map(place, many("published")))["first"] == 0
    assert set(map(place, many("published"))) == {"no swap", "second", "not"}


@pytest.mark.parametrize("order", ORDERS)
def test_answers_are_those_of_the_retrieved_slot(order: Order) -> None:
    """Two ways to the answer: carrying the objects about, and undoing the swaps of slots."""
    for one in many(order):
        assert one.answer == one.story.objects[retrieved_slot(one.story, one.question)]


def test_stories_of_more_boxes_are_asked_for() -> None:
    """From the fewest to the most; who asks for three gets what was always told."""
    counted = Counter(len(one.story.boxes) for step in range(STEPS) for one in lessons(KNOWN, "all", 0, step, 4, 5))
    assert set(counted) == {3, 4, 5}
    assert lessons(KNOWN, "all", 0, 1, 4, BOXES) == lessons(KNOWN, "all", 0, 1, 4)
