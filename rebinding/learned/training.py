"""Training an adapter: cross-entropy of the answer's token, by AdamW, one step after the other.

Where training stands is written down now and then, and a run that finds its own notes goes on from there. The
lessons of a step depend on the recipe and the step's number alone, so an interrupted run ends where an uninterrupted
one would.
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

from rebinding.learned.exam import answers
from rebinding.learned.lessons import Recipe, lessons
from rebinding.learned.lora import Adapter, attached, new
from rebinding.task.prompts import Encoder
from rebinding.task.words import Vocabulary

NOTES = "training.pt"
EVERY = 20
"""Steps between two notes."""


@dataclass(frozen=True)
class Step:
    """One step: the mean loss of its answers, and the share of them that were the likeliest of all tokens."""

    loss: float
    right: float


Told = Callable[[int, Step], None]


class Training:
    """A model, what it is taught, and how far it has come."""

    def __init__(self, model: Any, encoder: Encoder, known: Vocabulary, recipe: Recipe, base: str) -> None:
        self.model, self.encoder, self.known, self.recipe = model, encoder, known, recipe
        self.adapter: Adapter = new(model, rank=recipe.rank, alpha=recipe.alpha, base=base, seed=recipe.seed)
        self.optimizer = torch.optim.AdamW(self.adapter.tensors(), lr=recipe.rate, weight_decay=0.0)
        self.curve: list[Step] = []

    def run(self, folder: Path, told: Told) -> Adapter:
        """Take the steps that are left, and say of each how it went."""
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / NOTES).is_file():
            self._take_up(folder / NOTES)
        with attached(self.model, self.adapter):
            while len(self.curve) < self.recipe.steps:
                self.curve.append(self.step(len(self.curve)))
                told(len(self.curve), self.curve[-1])
                if len(self.curve) % EVERY == 0:
                    self._note(folder / NOTES)
        return self.adapter

    def step(self, number: int) -> Step:
        """One step, on the lessons of its number; the adapter has to be attached."""
        made = self.recipe
        prompts = lessons(self.known, made.order, made.seed, number, made.stories, made.boxes)
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.rate_at(number)
        logits = answers(self.model, self.encoder.encode(prompts))  # (prompt, vocabulary)
        wanted = torch.tensor([self.encoder.answer_token(one.answer) for one in prompts], device=logits.device)
        loss = nn.functional.cross_entropy(logits.float(), wanted)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.adapter.tensors(), self.recipe.clip)
        self.optimizer.step()
        return Step(loss.item(), float((logits.argmax(-1) == wanted).float().mean()))

    @property
    def _who(self) -> str:
        return json.dumps({"base": self.adapter.base, **asdict(self.recipe)}, sort_keys=True)

    def _note(self, path: Path) -> None:
        """Write down where training stands; a half-written note never takes the place of a whole one."""
        half = path.with_suffix(".part")
        state = {
            "who": self._who,
            "tensors": [tensor.detach() for tensor in self.adapter.tensors()],
            "optimizer": self.optimizer.state_dict(),
            "curve": [[step.loss, step.right] for step in self.curve],
        }
        torch.save(state, half)
        os.replace(half, path)

    @torch.no_grad()
    def _take_up(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        if state["who"] != self._who:
            raise ValueError(
                f"{path} is of another training, {state['who']}, and this one is {self._who}: give the same options"
                " to go on with it, or another folder"
            )
        for tensor, saved in zip(self.adapter.tensors(), state["tensors"], strict=True):
            tensor.copy_(saved)
        self.optimizer.load_state_dict(state["optimizer"])
        self.curve = [Step(loss, right) for loss, right in state["curve"]]
