"""The accuracy of a model by design: the answer's logit compared with those of the story's other objects.

Many prompts are read as one sequence. Prompts of a template begin with the same words, and questions about one story
follow the same story. A batch is written as a tree: a token is a node, its parent is the token before it, and every
different prefix has one node. A node has the position of its depth and attends to its ancestors and itself, as a causal
model does with each prompt alone: the numbers are the same, for less than half of the work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor

from rebinding.task.designs import Design, design
from rebinding.task.prompts import Encoded, Encoder, Prompt
from rebinding.task.words import Vocabulary

HELD_OUT: Literal["evaluation"] = "evaluation"
"""The split of the words that never occurs in training."""
TO_LEARN = ("published", "counterbalanced", "counterbalanced, unseen words")
"""The designs in which a check during training asks for the wanted accuracy."""
CHECKED = range(1_000_000, 1_000_036)
"""Numbers of the prompts of a check: no evaluation and no claim uses them."""
BATCH = 6
"""Prompts in one tree. More prompts share little besides the template, and attention grows quadratically."""


@dataclass(frozen=True)
class Accuracy:
    """The number of right answers (among the objects of the story) of n prompts."""

    right: int
    n: int

    @property
    def share(self) -> float:
        return self.right / self.n

    def __str__(self) -> str:
        return f"{self.right}/{self.n}"


def evaluation_designs(vocabulary: Vocabulary) -> Mapping[str, Design]:
    """The designs of the evaluation, by name. `unseen words` has no label and no object of training."""
    return MappingProxyType(
        {
            "published, no swap": design(split="none", operations=0, vocabulary=vocabulary),
            "published": design(split="none", vocabulary=vocabulary),
            "published, two swaps": design(split="none", operations=2, vocabulary=vocabulary),
            "partner second": design("partner_second", split="none", vocabulary=vocabulary),
            "partner second, two swaps": design("partner_second", split="none", operations=2, vocabulary=vocabulary),
            "published, five boxes": design(split="none", boxes=5, distractor="before", vocabulary=vocabulary),
            "counterbalanced": design("counterbalanced", vocabulary=vocabulary),
            "counterbalanced, unseen words": design("counterbalanced", split=HELD_OUT, vocabulary=vocabulary),
        }
    )


def is_learned(model: Any, encoder: Encoder, vocabulary: Vocabulary, wanted: float) -> bool:
    """Whether a model has the wanted accuracy in each design of `TO_LEARN`, on prompts that only such checks use."""
    designs = evaluation_designs(vocabulary)
    return all(
        accuracy(model, encoder, [designs[name].prompt(number) for number in CHECKED]).share >= wanted
        for name in TO_LEARN
    )


def evaluate(model: Any, encoder: Encoder, vocabulary: Vocabulary, n: int) -> dict[str, Accuracy]:
    """The accuracies of a model by design."""
    return {
        name: accuracy(model, encoder, [stories.prompt(number) for number in range(n)])
        for name, stories in evaluation_designs(vocabulary).items()
    }


def accuracy(model: Any, encoder: Encoder, prompts: list[Prompt]) -> Accuracy:
    """The accuracy of a model on some prompts."""
    encoded = encoder.encode(prompts)
    right = 0
    for start in range(0, len(encoded), BATCH):
        batch = encoded[start : start + BATCH]
        with torch.no_grad():
            logits = answers(model, batch)  # (prompt, vocabulary)
        for encoded_prompt, row in zip(batch, logits, strict=True):
            objects = encoded_prompt.prompt.story.objects
            best = int(row[list(encoder.answer_tokens(objects))].argmax())
            right += objects[best] == encoded_prompt.prompt.answer
    return Accuracy(right, len(encoded))


def answers(model: Any, prompts: list[Encoded]) -> Tensor:
    """The logits at each prompt's end, from one pass over their tree: (prompt, vocabulary)."""
    batch = tree([prompt.ids for prompt in prompts])
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
    """Refuse prompts longer than a sliding window: a node attends to all its ancestors."""
    window = getattr(model.config.get_text_config(), "sliding_window", None)
    depth = int(batch.positions.max()) + 1
    if window is not None and depth > window:
        raise ValueError(
            f"prompts of {depth} tokens exceed the sliding window of {window} that {type(model).__name__} has; give a"
            " model that sees a whole prompt"
        )


@dataclass(frozen=True)
class Tree:
    """A batch as a tree; `ends` are the nodes of the prompts' last tokens, in their order."""

    ids: Tensor  # (1, node)
    positions: Tensor  # (1, node)
    sees: Tensor  # (1, 1, node, node), whether the first attends to the second
    ends: Tensor  # (prompt,)

    def mask(self, dtype: torch.dtype) -> Tensor:
        """The mask that is added to attention scores."""
        return torch.zeros(self.sees.shape, dtype=dtype).masked_fill(~self.sees, torch.finfo(dtype).min)


def tree(prompts: Sequence[Sequence[int]]) -> Tree:
    """The tree of some prompts."""
    nodes: dict[tuple[int, int], int] = {}  # (parent, token) -> node
    ends = []
    for ids in prompts:
        node = -1
        for token in ids:
            node = nodes.setdefault((node, token), len(nodes))
        ends.append(node)
    sees = torch.eye(len(nodes), dtype=torch.bool)
    for (parent, _), node in nodes.items():  # parents come first
        if parent >= 0:
            sees[node] |= sees[parent]
    return Tree(
        ids=torch.tensor([[token for _, token in nodes]]),
        positions=(sees.sum(dim=1) - 1)[None],
        sees=sees[None, None],
        ends=torch.tensor(ends),
    )
