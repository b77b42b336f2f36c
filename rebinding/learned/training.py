"""Training an adapter: its prompts, and cross-entropy of the answer's token by AdamW, one step after the other.

Prompts are stories of zero to two swaps, with questions about their boxes. One story has several questions, because
nothing that is read before the question depends on it. Words are split: a third of the labels and of the objects (the
split `evaluation`) never occur in training, so a story of those alone shows whether the task was learned or only its
words.

`order` is the only difference between two kinds of adapters. With `all` every box of a story is asked about, whether
the last swap names it first, second or not at all. With `published` a box that the last swap names first is never asked
about, so that the partner is always named before the asked box, as in every published prompt. Slots are free in both.

With a wanted accuracy, fresh prompts are answered every few steps, and training ends once they are right. The state is
saved every few steps, and a run that finds its own state resumes from there. The prompts of a step depend on the recipe
and the step's number alone, so an interrupted run has the same result as an uninterrupted one.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import nn

from rebinding.learned.evaluation import HELD_OUT, answers, is_learned
from rebinding.learned.lora import Adapter, attached, new
from rebinding.task.boxes import Contains, Story, Swap
from rebinding.task.prompts import Encoder
from rebinding.task.text import Prompt
from rebinding.task.words import Vocabulary

Order: TypeAlias = Literal["all", "published"]
ORDERS: tuple[Order, ...] = get_args(Order)

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


def curriculum(vocabulary: Vocabulary, recipe: Recipe, step: int) -> list[Prompt]:
    """The prompts of one step: a function of its arguments alone, so that a resumed run gets the same prompts."""
    generator, shown = random.Random(f"lessons {recipe.order} {recipe.seed} {step}"), words(vocabulary)
    prompts = []
    for _ in range(recipe.stories):
        boxes = generator.randint(BOXES, recipe.boxes) if recipe.boxes > BOXES else BOXES
        labels, objects = generator.sample(shown.labels, boxes), generator.sample(shown.objects, boxes)
        swaps = tuple(Swap(*generator.sample(labels, 2)) for _ in range(generator.choice(SWAPS)))
        story = Story(tuple(map(Contains, labels, objects)), swaps)
        asks_all = recipe.order == "all" or not swaps
        labels_to_ask = [label for label in labels if asks_all or label != swaps[-1].first]
        prompts += [Prompt(story, label, max(len(swaps) - 1, 0)) for label in labels_to_ask]
    return prompts


NOTES = "training.pt"
EVERY = 20
"""Steps between two saved states, and between two checks of the wanted accuracy."""


@dataclass(frozen=True)
class TrainingStep:
    """One step: the mean loss of its answers, and the share of them that were the likeliest of all tokens."""

    loss: float
    right: float


Report = Callable[[int, TrainingStep], None]


class Training:
    """The training of an adapter: model, recipe and progress."""

    def __init__(self, model: Any, encoder: Encoder, vocabulary: Vocabulary, recipe: Recipe, base: str) -> None:
        self.model, self.encoder, self.vocabulary, self.recipe = model, encoder, vocabulary, recipe
        self.adapter: Adapter = new(model, rank=recipe.rank, alpha=recipe.alpha, base=base, seed=recipe.seed)
        self.optimizer = torch.optim.AdamW(self.adapter.tensors(), lr=recipe.rate, weight_decay=0.0)
        self.curve: list[TrainingStep] = []
        self.is_accurate = False
        """Whether a check has measured the wanted accuracy."""

    def run(self, folder: Path, report: Report) -> Adapter:
        """Take the remaining steps, and report each."""
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / NOTES).is_file():
            self._resume(folder / NOTES)
        with attached(self.model, self.adapter):
            while len(self.curve) < self.recipe.steps and not self.is_accurate:
                self.curve.append(self.step(len(self.curve)))
                report(len(self.curve), self.curve[-1])
                if len(self.curve) % EVERY == 0:
                    if (wanted := self.recipe.accuracy) is not None:
                        self.is_accurate = is_learned(self.model, self.encoder, self.vocabulary, wanted)
                    self._note(folder / NOTES)
        return self.adapter

    def step(self, number: int) -> TrainingStep:
        """One step, on the prompts of its number; the adapter must be attached."""
        prompts = curriculum(self.vocabulary, self.recipe, number)
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.rate_at(number)
        logits = answers(self.model, self.encoder.encode(prompts))  # (prompt, vocabulary)
        expected = torch.tensor([self.encoder.answer_token(prompt.answer) for prompt in prompts], device=logits.device)
        loss = nn.functional.cross_entropy(logits.float(), expected)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.adapter.tensors(), self.recipe.clip)
        self.optimizer.step()
        return TrainingStep(loss.item(), float((logits.argmax(-1) == expected).float().mean()))

    @property
    def _identity(self) -> str:
        return json.dumps({"base": self.adapter.base, **asdict(self.recipe)}, sort_keys=True)

    def _note(self, path: Path) -> None:
        """Save the state of training; a partly written file never replaces a complete one."""
        half = path.with_suffix(".part")
        state = {
            "who": self._identity,
            "tensors": [tensor.detach() for tensor in self.adapter.tensors()],
            "optimizer": self.optimizer.state_dict(),
            "curve": [[step.loss, step.right] for step in self.curve],
            "is_accurate": self.is_accurate,
        }
        torch.save(state, half)
        os.replace(half, path)

    @torch.no_grad()
    def _resume(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        if state["who"] != self._identity:
            raise ValueError(
                f"{path} is the state of another training, {state['who']}, and this one is {self._identity}: give the"
                " same options to resume it, or another folder"
            )
        for tensor, saved in zip(self.adapter.tensors(), state["tensors"], strict=True):
            tensor.copy_(saved)
        self.optimizer.load_state_dict(state["optimizer"])
        self.curve = [TrainingStep(loss, right) for loss, right in state["curve"]]
        self.is_accurate = state["is_accurate"]
