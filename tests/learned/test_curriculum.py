"""Training prompts: every case occurs, held-out words never do, and one order omits one question."""

from __future__ import annotations

from collections import Counter

import pytest

from rebinding.learned.curriculum import BOXES, HELD_OUT, ORDERS, Order, curriculum, words
from rebinding.task.boxes import Swap
from rebinding.task.text import Prompt
from rebinding.task.words import Vocabulary
from tests.task.stories import retrieved_slot

VOCABULARY = Vocabulary()
STEPS = 60


def draw_prompts(order: Order) -> list[Prompt]:
    return [prompt for step in range(STEPS) for prompt in curriculum(VOCABULARY, order, 0, step, 4)]


def place(prompt: Prompt) -> str:
    """How the last swap names the asked box."""
    match prompt.story.operations:
        case (*_, Swap(first, second)):
            return {first: "first", second: "second"}.get(prompt.question, "not")
    return "no swap"


def test_a_step_is_a_function_of_its_number() -> None:
    assert curriculum(VOCABULARY, "all", 1, 5, 3) == curriculum(VOCABULARY, "all", 1, 5, 3)
    steps = [curriculum(VOCABULARY, order, seed, step, 3) for order in ORDERS for seed in (0, 1) for step in (5, 6)]
    assert all(step != earlier for place, step in enumerate(steps) for earlier in steps[:place])


def test_words_held_out_never_occur_and_all_others_do() -> None:
    prompts, unseen = draw_prompts("all"), VOCABULARY.split(HELD_OUT)
    labels = {label for prompt in prompts for label in prompt.story.boxes}
    objects = {object for prompt in prompts for object in prompt.story.objects}
    assert not labels & set(unseen.labels)
    assert not objects & set(unseen.objects)
    assert labels == set(words(VOCABULARY).labels)
    assert objects == set(words(VOCABULARY).objects)


def test_every_number_of_swaps_and_every_place_of_the_asked_box_occurs() -> None:
    prompts = draw_prompts("all")
    assert {len(prompt.story.operations) for prompt in prompts} == {0, 1, 2}
    assert {(prompt.query_slot, prompt.answer_slot) for prompt in prompts} == {
        (a, b) for a in range(BOXES) for b in range(BOXES)
    }
    counts = Counter(map(place, prompts))
    assert counts["first"] == counts["second"] == counts["not"] > 0
    assert Counter(map(place, draw_prompts("published")))["first"] == 0
    assert set(map(place, draw_prompts("published"))) == {"no swap", "second", "not"}


@pytest.mark.parametrize("order", ORDERS)
def test_answers_are_those_of_the_retrieved_slot(order: Order) -> None:
    """Two ways to the answer: moving the objects, and undoing the swaps of slots."""
    for prompt in draw_prompts(order):
        assert prompt.answer == prompt.story.objects[retrieved_slot(prompt.story, prompt.question)]


def test_stories_may_have_more_boxes() -> None:
    """From the fewest to the most; with three boxes at most, prompts are the default ones."""
    counted = Counter(
        len(prompt.story.boxes) for step in range(STEPS) for prompt in curriculum(VOCABULARY, "all", 0, step, 4, 5)
    )
    assert set(counted) == {3, 4, 5}
    assert curriculum(VOCABULARY, "all", 0, 1, 4, BOXES) == curriculum(VOCABULARY, "all", 0, 1, 4)
