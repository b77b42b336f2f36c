"""The training prompts of an adapter: stories of zero to two swaps, with questions about their boxes.

One story has several questions, because nothing that is read before the question depends on it. Words are split: a
third of the labels and of the objects (the split `evaluation`) never occur in training, so a story of those alone shows
whether the task was learned or only its words.

`order` is the only difference between two kinds of adapters. With `all` every box of a story is asked about, whether
the last swap names it first, second or not at all. With `published` a box that the last swap names first is never asked
about, so that the partner is always named before the asked box, as in every published prompt. Slots are free in both.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from rebinding.task.boxes import Contains, Story, Swap
from rebinding.task.text import Prompt
from rebinding.task.words import Vocabulary

Order: TypeAlias = Literal["all", "published"]
ORDERS: tuple[Order, ...] = get_args(Order)

HELD_OUT: Literal["evaluation"] = "evaluation"
"""The split of the words that never occurs in training."""

BOXES = 3
"""The fewest boxes that a story has."""
SWAPS: tuple[int, ...] = (0, 1, 1, 2)
"""How many swaps a story has; each entry is equally likely."""
WARM = 10
"""Steps over which the learning rate rises to its full value."""


@dataclass(frozen=True)
class Recipe:
    """The settings of training; with the base they determine the adapter.

    On SmolLM2-135M, with these values, prompts without a swap are right after 100 steps, and swaps are learned rather
    suddenly between 110 and 150 steps; the remaining steps improve what is still uncertain."""

    order: Order = "all"
    seed: int = 0
    steps: int = 200
    """The most steps; with `accuracy` there may be fewer."""
    stories: int = 4
    rank: int = 16
    alpha: int = 32
    rate: float = 1e-3
    clip: float = 1.0
    boxes: int = BOXES
    """The most boxes that a story has."""
    cool: int = 100
    """The last steps, over which the learning rate falls to zero."""
    accuracy: float | None = None
    """The wanted accuracy: the first check that measures it ends the training. Without it, training takes all steps."""

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ValueError(f"there is no order {self.order!r}; the orders are {', '.join(ORDERS)}")
        for name in ("steps", "stories", "rank", "alpha", "cool"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; give 1 or more")
        if self.boxes < BOXES:
            raise ValueError(f"boxes is {self.boxes}; a story has at least {BOXES}")
        if self.accuracy is not None and not 0 < self.accuracy <= 1:
            raise ValueError(f"accuracy is {self.accuracy}; give a share of right answers above 0, at most 1")

    def rate_at(self, step: int) -> float:
        """The learning rate: rising over the first steps, then constant, and falling to zero over the last."""
        return self.rate * min(1.0, (step + 1) / WARM, (self.steps - step) / self.cool)


def words(vocabulary: Vocabulary) -> Vocabulary:
    """The words of training: all except the split `HELD_OUT`."""
    unseen = vocabulary.split(HELD_OUT)
    return Vocabulary(
        tuple(word for word in vocabulary.labels if word not in unseen.labels),
        tuple(word for word in vocabulary.objects if word not in unseen.objects),
    )


def curriculum(
    vocabulary: Vocabulary, order: Order, seed: int, step: int, stories: int, most: int = BOXES
) -> list[Prompt]:
    """The prompts of one step: a function of its arguments alone, so that a resumed run gets the same prompts.

    Stories have `BOXES` to `most` boxes.
    """
    generator = random.Random(f"lessons {order} {seed} {step}")
    return [prompt for _ in range(stories) for prompt in _draw_story_prompts(generator, words(vocabulary), order, most)]


def _draw_story_prompts(generator: random.Random, vocabulary: Vocabulary, order: Order, most: int) -> list[Prompt]:
    boxes = generator.randint(BOXES, most) if most > BOXES else BOXES
    labels, objects = generator.sample(vocabulary.labels, boxes), generator.sample(vocabulary.objects, boxes)
    swaps = tuple(Swap(*generator.sample(labels, 2)) for _ in range(generator.choice(SWAPS)))
    story = Story(tuple(map(Contains, labels, objects)), swaps)
    labels_to_ask = [label for label in labels if order == "all" or not swaps or label != swaps[-1].first]
    return [Prompt(story, label, max(len(swaps) - 1, 0)) for label in labels_to_ask]
