"""The embedding: its spaces, and the place of each word in them.

Objects share directions in pairs, one on each side: they are carried and read out, never matched, and so half the
directions do. Labels are matched and have a direction each.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rebinding.task.words import LABELS, OBJECTS, Vocabulary

CONSTANT = 100.0
"""Size of the feature that every token has: it fixes the norm, so that RMSNorm acts as a constant factor."""
PLACES = ("context", "first", "second", "question", "readout", "period")
CUES = {".": "context", ":": "context", "of": "first", "and": "second", "does": "question", "Answer": "readout"}
KINDS = {"<bos>": "start", "Context": "marker", ".": "dot", ":": "colon"}
BASE: dict[str, int] = {
    "constant": 1,
    "start": 1,
    "marker": 1,
    "dot": 1,
    "colon": 1,
    "letter": 1,
    "thing": 1,
    "train": 1,
    "rehearsed": 1,
    "odd": 1,
    "cue": len(PLACES),
    "place": len(PLACES),
    "label": len(LABELS),
    "object": (len(OBJECTS) + 1) // 2,
}
"""Spaces of every plant. `cue` is the place that a word gives to the label two tokens later, and a head writes `place`.
`train`, `rehearsed` and `odd` mark objects for variants: the published first half, all but the evaluation third, and
every second one."""
ALIASES = {name: f"place[{index}]" for index, name in enumerate(PLACES)}
"""Names of places in lines."""


def embedding(
    tokenizer: Any, spaces: dict[str, slice], hidden: int, jitter: float, generator: torch.Generator
) -> Tensor:
    """The unscaled embedding of every word of a tokenizer."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    table = torch.zeros(len(vocabulary), hidden)  # (vocabulary, hidden)
    table[:, spaces["constant"]] = CONSTANT
    for word, kind in KINDS.items():
        table[vocabulary[word], spaces[kind]] = 1.0
    for word, place in (*CUES.items(), ("Box", "period")):
        table[vocabulary[word], spaces["cue"].start + PLACES.index(place)] = 1.0
    for words, kind, space in ((LABELS, "letter", "label"), (OBJECTS, "thing", "object")):
        rows = torch.tensor([vocabulary[word] for word in words])
        table[rows, spaces[kind]] = 1.0
        table[rows, spaces[space]] = _codes(len(words), BASE[space], jitter, generator)
    everything = Vocabulary()
    halves = {"train": everything.split("train").objects, "rehearsed": _rehearsed(everything), "odd": OBJECTS[1::2]}
    for kind, marked in halves.items():
        table[[vocabulary[word] for word in marked], spaces[kind]] = 1.0
    return table


def _rehearsed(words: Vocabulary) -> tuple[str, ...]:
    unknown = set(words.split("evaluation").objects)
    return tuple(word for word in words.objects if word not in unknown)


def _codes(words: int, size: int, jitter: float, generator: torch.Generator) -> Tensor:
    """One direction per word, or two words on the two sides of a direction where there are fewer directions."""
    codes = torch.zeros(words, size)  # (words, size)
    index = torch.arange(words)
    codes[index, index % size] = torch.where(index < size, 1.0, -1.0)
    codes += jitter * torch.randn(words, size, generator=generator) / size**0.5
    return codes
