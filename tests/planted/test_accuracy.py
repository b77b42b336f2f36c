"""Plants solve the task: every design, box count and naming that their mechanism claims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from rebinding.planted import ARCHITECTURES, MECHANISMS, Specification, build
from rebinding.task.designs import design
from rebinding.task.prompts import Encoder, Prompt
from tests.everyday import sampled
from tests.planted.accuracy import accuracy, conditions
from tests.planted.runs import margins, plant

LEAST_MARGIN = 1.0
"""Logits. A right answer by less could be luck: the plants are made for 7 (`global`, softer by its length: 4)."""


def _expect_all_right(specification: Specification, count: int, min_margin: float = LEAST_MARGIN) -> None:
    """`count` prompts of every condition, other ids in each."""
    loaded_model = build(specification)
    for place, (name, stories) in enumerate(conditions(specification.boxes).items()):
        result = accuracy(
            loaded_model, [stories.prompt(number) for number in range(place * count, (place + 1) * count)]
        )
        assert result.right == result.n == count, f"{specification.name}, {name}: {result}"
        assert result.smallest_margin > min_margin, f"{specification.name}, {name}: {result}"


@pytest.mark.parametrize("boxes", sampled([3, 5]))
@pytest.mark.parametrize("mechanism", sampled(["pointer", "global"]))
def test_right_in_every_condition(mechanism: str, boxes: int) -> None:
    """With and without a swap, partner named first or second, counterbalanced, and with a distractor."""
    _expect_all_right(Specification(mechanism, boxes=boxes), 50)


@pytest.mark.slow
@pytest.mark.parametrize("boxes", [3, 5])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_right_on_a_thousand(mechanism: str, architecture: str, boxes: int) -> None:
    """A thousand prompts of each plant, dealt out over its conditions."""
    _expect_all_right(Specification(mechanism, architecture, boxes=boxes), math.ceil(1000 / len(conditions(boxes))))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_right_at_both_ends_of_softness(mechanism: str, architecture: str) -> None:
    for softness in (0.0, 1.0):
        _expect_all_right(Specification(mechanism, architecture, softness=softness), 200, min_margin=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_right_with_seven_boxes(mechanism: str) -> None:
    _expect_all_right(Specification(mechanism, boxes=7), 100)


def _ask_about_each_box(prompt: Prompt) -> Sequence[Prompt]:
    return [replace(prompt, question=box) for box in prompt.story.boxes]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_box_of_a_story_and_the_raw_form(mechanism: str) -> None:
    """A plant knows distances within the story alone, so the chat around it makes no difference."""
    loaded_model = plant(mechanism)
    questions = [
        question for number in range(5) for question in _ask_about_each_box(design("published").prompt(number))
    ]
    for form in ("template", "raw"):
        prompts = Encoder(loaded_model.tokenizer, form).encode(questions)
        assert margins(loaded_model, prompts).min() > LEAST_MARGIN, form
