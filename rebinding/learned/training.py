"""Training an adapter: cross-entropy of the answer's token, by AdamW, one step after the other.

With a wanted accuracy, fresh prompts are answered every few steps, and training ends once they are right.

The state is saved every few steps, and a run that finds its own state resumes from there. The prompts of a step depend
on the recipe and the step's number alone, so an interrupted run has the same result as an uninterrupted one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rebinding.learned.curriculum import Recipe, curriculum
from rebinding.learned.evaluation import answers, is_learned
from rebinding.learned.lora import Adapter, attached, new
from rebinding.task.prompts import Encoder
from rebinding.task.words import Vocabulary

NOTES = "training.pt"
EVERY = 20
"""Steps between two saved states, and between two checks of the wanted accuracy."""


@dataclass(frozen=True)
class Step:
    """One step: the mean loss of its answers, and the share of them that were the likeliest of all tokens."""

    loss: float
    right: float


Report = Callable[[int, Step], None]


class Training:
    """The training of an adapter: model, recipe and progress."""

    def __init__(self, model: Any, encoder: Encoder, vocabulary: Vocabulary, recipe: Recipe, base: str) -> None:
        self.model, self.encoder, self.vocabulary, self.recipe = model, encoder, vocabulary, recipe
        self.adapter: Adapter = new(model, rank=recipe.rank, alpha=recipe.alpha, base=base, seed=recipe.seed)
        self.optimizer = torch.optim.AdamW(self.adapter.tensors(), lr=recipe.rate, weight_decay=0.0)
        self.curve: list[Step] = []
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
                    self._check()
                    self._note(folder / NOTES)
        return self.adapter

    def _check(self) -> None:
        """Measure whether the wanted accuracy is reached; the adapter must be attached."""
        wanted = self.recipe.accuracy
        if wanted is not None:
            self.is_accurate = is_learned(self.model, self.encoder, self.vocabulary, wanted)

    def step(self, number: int) -> Step:
        """One step, on the prompts of its number; the adapter must be attached."""
        recipe = self.recipe
        prompts = curriculum(self.vocabulary, recipe.order, recipe.seed, number, recipe.stories, recipe.boxes)
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.rate_at(number)
        logits = answers(self.model, self.encoder.encode(prompts))  # (prompt, vocabulary)
        expected = torch.tensor([self.encoder.answer_token(prompt.answer) for prompt in prompts], device=logits.device)
        loss = nn.functional.cross_entropy(logits.float(), expected)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.adapter.tensors(), self.recipe.clip)
        self.optimizer.step()
        return Step(loss.item(), float((logits.argmax(-1) == expected).float().mean()))

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
        self.curve = [Step(loss, right) for loss, right in state["curve"]]
        self.is_accurate = state["is_accurate"]
