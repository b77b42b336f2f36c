"""The published words, their splits, and the words of each prompt id.

Label and object lists are facts of the published task: letters in alphabetical order, 82 objects in a fixed order.
The order matters, because an id is the seed of a shuffle of list positions.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

LABELS: tuple[str, ...] = tuple(string.ascii_uppercase)
_OBJECTS = """
egg fan tea engine plate gift wire watch cross boat game rose shell seed magnet suit ticket glass tie card brain fig
wheel machine note drink bread camera bill chemical clock flower creature rock plant sheet leaf block newspaper disk
boot medicine coffee book ball string fish crown branch phone plane apple cup bell brick document file bus bag drug
pot computer mirror stone radio dress meat train bomb letter guitar hat map magazine coat television painting picture
milk pipe ice key
"""
OBJECTS: tuple[str, ...] = tuple(_OBJECTS.split())
SHORTEST_SPLIT = 4
"""Lists with fewer words than this are never split."""

Split: TypeAlias = Literal["train", "test", "none", "discovery", "directions", "evaluation"]
HALVES: tuple[Split, ...] = ("train", "test")
THIRDS: tuple[Split, ...] = ("discovery", "evaluation", "directions")


class DesignError(ValueError):
    """A design is impossible, or it lacks the requested pair."""


@dataclass(frozen=True)
class Vocabulary:
    """The words a design may draw from."""

    labels: tuple[str, ...] = LABELS
    objects: tuple[str, ...] = OBJECTS

    def split(self, name: Split) -> Vocabulary:
        """A part of the words, taken from labels and objects alike.

        `train` and `test` are the published halves. `discovery`, `evaluation` and `directions` are three disjoint sets
        of every third word, so that none is one end of the alphabet.
        """
        if name == "none":
            return self
        if name in HALVES:
            return Vocabulary(_half(self.labels, name), _half(self.objects, name))
        start = THIRDS.index(name)
        return Vocabulary(self.labels[start::3], self.objects[start::3])

    def keep(self, accepts: Callable[[str], bool]) -> Vocabulary:
        """The same labels, and the objects that pass (the published filter keeps single tokens, before splitting)."""
        return Vocabulary(self.labels, tuple(word for word in self.objects if accepts(word)))


def _half(words: tuple[str, ...], name: Split) -> tuple[str, ...]:
    if len(words) < SHORTEST_SPLIT:
        return words
    middle = int(0.5 * len(words))
    return words[:middle] if name == "train" else words[middle:]


@dataclass(frozen=True)
class Draw:
    """The words of one prompt id: entity e is called `labels[e]` and holds `objects[e]`; later words are donors."""

    id: int
    labels: tuple[str, ...]
    objects: tuple[str, ...]

    def label(self, index: int) -> str:
        return _word("label", self.labels, index)

    def object(self, index: int) -> str:
        return _word("object", self.objects, index)


def draw(vocabulary: Vocabulary, prompt_id: int) -> Draw:
    """Shuffle the labels and then, with the same generator, the objects, seeded by the id: the published rule.

    `random.Random` with an integer seed, and its `shuffle`, give the same result in every Python 3.
    """
    check_id(prompt_id)
    generator = random.Random(prompt_id)
    labels, objects = list(vocabulary.labels), list(vocabulary.objects)
    generator.shuffle(labels)
    generator.shuffle(objects)
    return Draw(prompt_id, tuple(labels), tuple(objects))


def check_id(prompt_id: int) -> None:
    if isinstance(prompt_id, bool) or not isinstance(prompt_id, int) or prompt_id < 0:
        raise DesignError(f"a prompt id is a whole number from 0 on; got {prompt_id!r}")


def _word(kind: str, words: tuple[str, ...], index: int) -> str:
    if index >= len(words):
        raise DesignError(
            f"this needs {index + 1} different {kind}s and the vocabulary of the design has {len(words)};"
            " ask for fewer boxes, use a part of the words that has more, or a tokenizer that cuts fewer words"
        )
    return words[index]
