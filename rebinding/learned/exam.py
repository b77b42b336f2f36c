"""How often a model is right, by design: the answer's logit against those of the story's other objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from rebinding.learned.lessons import HELD_OUT
from rebinding.learned.tree import Tree, tree
from rebinding.task.designs import Design, design
from rebinding.task.prompts import Encoded, Encoder, Prompt
from rebinding.task.words import Vocabulary

BATCH = 6
"""Prompts in one tree: more share little besides the template, and attention grows with the square of the nodes."""


@dataclass(frozen=True)
class Mark:
    """Right answers among the objects of the story, of n prompts."""

    right: int
    n: int

    @property
    def share(self) -> float:
        return self.right / self.n

    def __str__(self) -> str:
        return f"{self.right}/{self.n}"


def papers(known: Vocabulary) -> Mapping[str, Design]:
    """What is asked, by name. `unseen words` has none of the labels and objects of training."""
    return MappingProxyType(
        {
            "published, no swap": design(split="none", operations=0, vocabulary=known),
            "published": design(split="none", vocabulary=known),
            "published, two swaps": design(split="none", operations=2, vocabulary=known),
            "partner second": design("partner_second", split="none", vocabulary=known),
            "partner second, two swaps": design("partner_second", split="none", operations=2, vocabulary=known),
            "published, five boxes": design(split="none", boxes=5, distractor="before", vocabulary=known),
            "counterbalanced": design("counterbalanced", vocabulary=known),
            "counterbalanced, unseen words": design("counterbalanced", split=HELD_OUT, vocabulary=known),
        }
    )


def exam(model: Any, encoder: Encoder, known: Vocabulary, n: int) -> dict[str, Mark]:
    """The marks of a model by design."""
    return {
        name: mark(model, encoder, [drawn.prompt(number) for number in range(n)])
        for name, drawn in papers(known).items()
    }


def mark(model: Any, encoder: Encoder, prompts: list[Prompt]) -> Mark:
    """How many of some prompts are answered right."""
    encoded = encoder.encode(prompts)
    right = 0
    for start in range(0, len(encoded), BATCH):
        batch = encoded[start : start + BATCH]
        with torch.no_grad():
            logits = answers(model, batch)  # (prompt, vocabulary)
        for one, row in zip(batch, logits, strict=True):
            objects = one.prompt.story.objects
            best = int(row[list(encoder.answer_tokens(objects))].argmax())
            right += objects[best] == one.prompt.answer
    return Mark(right, len(encoded))


def answers(model: Any, prompts: list[Encoded]) -> Tensor:
    """The logits at each prompt's end, from one pass over their tree: (prompt, vocabulary)."""
    batch = tree([one.ids for one in prompts])
    _check_window(model, batch)
    device = next(model.parameters()).device
    out = model(
        input_ids=batch.ids.to(device),
        position_ids=batch.positions.to(device),
        attention_mask=batch.mask(model.dtype).to(device),
        use_cache=False,
        logits_to_keep=batch.ends.to(device),
    )
    logits: Tensor = out.logits[0]
    return logits


def _check_window(model: Any, batch: Tree) -> None:
    """A node sees all its ancestors, which is what the model does only while its sliding window is not exceeded."""
    window = getattr(model.config.get_text_config(), "sliding_window", None)
    depth = int(batch.positions.max()) + 1
    if window is not None and depth > window:
        raise ValueError(
            f"prompts of {depth} tokens exceed the sliding window of {window} that {type(model).__name__} has; give a"
            " model that sees a whole prompt"
        )
