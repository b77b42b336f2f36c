"""Training prompts: every case occurs, held-out words never do, and one order omits one question."""

from __future__ import annotations

from collections import Counter

import pytest

from rebinding.learned.curriculum import BOXES, HELD_OUT, ORDERS, Order, curriculum, words
from rebinding.task.boxes import Swap
from rebinding.task.text import Prompt
from rebinding.task.words import Vocabulary
from tests.task.stories import retrieved_slot

KNOWN = Vocabulary()
STEPS = 60


def many(order: Order) -> list[Prompt]:
    return [prompt for step in range(STEPS) for prompt in curriculum(KNOWN, order, 0, step, 4)]


def place(prompt: Prompt) -> str:
    """How the last swap names the asked box."""
    match prompt.story.operations:
        case (*_, Swap(first, second)):
            return {first: "first", second: "second"}.get(prompt.question, "not")
    return "no swap"


def test_a_step_is_a_function_of_its_number() -> None:
    assert curriculum(KNOWN, "all", 1, 5, 3) == curriculum(KNOWN, "all", 1, 5, 3)
    steps = [curriculum(KNOWN, order, seed, step, 3) for order in ORDERS for seed in (0, 1) for step in (5, 6)]
    assert all(step != earlier for place, step in enumerate(steps) for earlier in steps[:place])


def test_words_held_out_never_occur_and_all_others_do() -> None:
    prompts, unseen = many("all"), KNOWN.split(HELD_OUT)
    labels = {label for prompt in prompts for label in prompt.story.boxes}
    objects = {thing for prompt in prompts for thing in prompt.story.objects}
    assert not labels & set(unseen.labels)
    assert not objects & set(unseen.objects)
    assert labels == set(words(KNOWN).labels)
    assert objects == set(words(KNOWN).objects)


def test_every_number_of_swaps_and_every_place_of_the_asked_box_occurs() -> None:
    prompts = many("all")
    assert {len(prompt.story.operations) for prompt in prompts} == {0, 1, 2}
    assert {(prompt.asked_slot, prompt.answer_slot) for prompt in prompts} == {
        (a, b) for a in range(BOXES) for b in range(BOXES)
    }
    seen = Counter(map(place, prompts))
    assert seen["first"] == seen["second"] == seen["not"] > 0
    assert Counter(map(place, many("published")))["first"] == 0
    assert set(map(place, many("published"))) == {"no swap", "second", "not"}


@pytest.mark.parametrize("order", ORDERS)
def test_answers_are_those_of_the_retrieved_slot(order: Order) -> None:
    """Two ways to the answer: moving the objects, and undoing the swaps of slots."""
    for prompt in many(order):
        assert prompt.answer == prompt.story.objects[retrieved_slot(prompt.story, prompt.question)]


def test_stories_may_have_more_boxes() -> None:
    """From the fewest to the most; with three boxes at most, prompts are the default ones."""
    counted = Counter(
        len(prompt.story.boxes) for step in range(STEPS) for prompt in curriculum(KNOWN, "all", 0, step, 4, 5)
    )
    assert set(counted) == {3, 4, 5}
    assert curriculum(KNOWN, "all", 0, 1, 4, BOXES) == curriculum(KNOWN, "all", 0, 1, 4)
