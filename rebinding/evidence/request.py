"""A request: everything that a piece of evidence depends on, beside the subject.

From the request alone come the key in memory and the address in the store (`key`), the settings that travel inside the
evidence (`plain`), its name in the report (`label`) and what a picture says of it (`caption`). Two requests are the
same evidence exactly if their keys are equal, and nothing is ever looked up by a name that somebody composed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias

from rebinding.evidence.kinds import Kind

Facet: TypeAlias = str | int | None
SHORT = 8
"""Digits of a key that tell two requests of a report apart."""


def digest(content: Any) -> str:
    """sha256 of plain JSON, independent of the order of names."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


@dataclass(frozen=True)
class PromptSet:
    """The prompts of a design with these ids, as a subject sees them.

    `tokens` is the sha256 of their token ids, the places of their roles and their answer tokens: with another
    tokenizer, chat form or list of words the same ids are other prompts. Of a pool, in which later ids only stand by,
    the first `encoded` are in it, and `words`, the sha256 of the words that all of them are drawn from.
    """

    design: str
    ids: tuple[int, ...]
    tokens: str
    words: str
    encoded: int
    form: str
    split: str | None = None
    boxes: int = 3
    operations: int = 1
    verb: str = "swap"
    distractor: str | None = None
    pairing: tuple[str, ...] = ()
    """How each prompt's counterfactual is made; empty where there is none."""
    narrative: bool = False
    cut: int = 0
    """How many tokens are left away at the end, so that the readout comes so much earlier."""

    @property
    def facets(self) -> Mapping[str, Facet]:
        """What tells sets of prompts apart in a few words; what is usual is left out."""
        usual: dict[str, Facet] = {
            "split": None, "boxes": None, "operations": 1, "verb": "swap", "narrative": False, "cut": 0,
        }  # fmt: skip
        told = {name: getattr(self, name) for name in usual}
        return {"design": self.design, **{name: value for name, value in told.items() if value != usual[name]}}


@dataclass(frozen=True)
class Request:
    """One request. Subclasses are the kinds: frozen, hashable, made of plain values, tuples and other such classes."""

    KIND: ClassVar[Kind]

    def __getstate__(self) -> dict[str, Any]:
        """Its fields travel to a worker, and what follows from them is made there."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @cached_property
    def plain(self) -> Mapping[str, Any]:
        """Every field, as plain JSON."""
        found: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return MappingProxyType(found)

    @cached_property
    def key(self) -> str:
        """What this request, and no other, is known by."""
        return digest({"kind": self.KIND.name, **self.plain})

    @property
    def n(self) -> int:
        """How many units the evidence must have."""
        raise NotImplementedError

    @property
    def facets(self) -> Mapping[str, Facet]:
        """What a person tells requests of this kind apart by, and the report selects by."""
        raise NotImplementedError

    @property
    def edits(self) -> tuple[str, ...] | None:
        """The columns that tell edits apart, each of which must have moved something."""
        return self.KIND.edits

    @property
    def label(self) -> str:
        """A name that is unique in a report."""
        return f"{self.caption} #{self.key[:SHORT]}"

    @property
    def caption(self) -> str:
        """What it is, in a line."""
        told = ", ".join(f"{name} {value}" for name, value in self.facets.items() if value is not None)
        return f"{self.KIND.name}: {told}, N {self.n}"


@dataclass(frozen=True)
class OnPrompts(Request):
    """A request on one set of prompts, each of them a unit, unless a kind says otherwise."""

    prompts: PromptSet

    @property
    def n(self) -> int:
        return len(self.prompts.ids)

    @property
    def facets(self) -> Mapping[str, Facet]:
        return self.prompts.facets
