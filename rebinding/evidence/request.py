"""A request: everything that a piece of evidence depends on, beside the subject; its kind, its blocks, its source.

From the request alone come the key in memory and the address in the store (`key`), the settings that travel inside the
evidence (`plain`), its name in the report (`label`) and what a picture says of it (`caption`). Two requests are the
same evidence exactly if their keys are equal, and nothing is ever looked up by a name that somebody composed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, Self, TypeAlias

import pandas as pd

from rebinding.evidence.evidence import Evidence, EvidenceError, merge

Facet: TypeAlias = str | int | None
SHORT = 8
"""Digits of a key that tell two requests of a report apart."""
ABOUT = ("request", "facets", "key")
"""Settings inside the evidence that come from the request."""


def digest(content: Any) -> str:
    """sha256 of plain JSON, independent of the order of names."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


@dataclass(frozen=True)
class Kind:
    """One kind of evidence, declared once, in the experiment that makes it. Evidence is made through its kind, so a
    column that is missing, misspelt or new is an error where it arises.

    `numbered` is a pattern for families of columns such as `before_logit_0`; `lacking` are columns whose numbers may
    not exist (NaN). `unit` is the column that tells units apart. `edits` are the columns that tell edits apart, each of
    which must have `moved` something in some row; None for kinds in which nothing is edited, or nothing is recorded.
    `unedited` is a column and its value in rows that are there to compare with, and in which nothing is edited.
    """

    name: str
    columns: tuple[str, ...]
    numbered: str = "(?!)"
    lacking: tuple[str, ...] = ()
    unit: str = "prompt"
    edits: tuple[str, ...] | None = None
    unedited: tuple[str, str] | None = None

    def evidence(self, rows: pd.DataFrame, settings: Mapping[str, Any]) -> Evidence:
        """Rows and settings, if the rows are of this kind."""
        given, wanted = set(rows.columns), set(self.columns)
        missing = sorted(wanted - given)
        strange = sorted(name for name in given - wanted if not re.fullmatch(self.numbered, str(name)))
        if missing or strange:
            raise EvidenceError(f"evidence of {self.name} lacks the columns {missing} and has {strange}, unknown to it")
        return Evidence(self.name, rows, settings)


@dataclass(frozen=True)
class PromptSet:
    """The prompts of a design with these ids, as a subject sees them.

    `tokens` is the sha256 of their token ids, the places of their roles and their answer tokens: with another
    tokenizer, chat form or list of words the same ids are other prompts.
    """

    design: str
    ids: tuple[int, ...]
    tokens: str
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
    def block(self) -> int | None:
        """How many prompts are computed, and kept in the store, at a time; None: all of them at once."""
        return None

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

    def on(self, prompts: PromptSet) -> Self:
        """The same request on other prompts. A block of a request is the request on some of its prompts."""
        return replace(self, prompts=prompts)


class EvidenceSource(Protocol):
    """Gives the evidence of a request; who asks does not know whether it is computed, read, made up or only counted."""

    def get(self, request: Request) -> Evidence: ...


def describe(request: Request, evidence: Evidence) -> Evidence:
    """The evidence of a request, which says inside what was requested."""
    about = {"request": dict(request.plain), "facets": dict(request.facets), "key": request.key}
    return request.KIND.evidence(evidence.rows, {**evidence.settings, **about})


def join(request: Request, blocks: Sequence[Evidence]) -> Evidence:
    """The evidence of a request from the evidence of its blocks, in their order."""
    if len(blocks) == 1:
        return blocks[0]
    return describe(request, merge([_without_request(block) for block in blocks]))


def _without_request(block: Evidence) -> Evidence:
    """Blocks of a request differ in the prompts that they say inside, and must not differ in anything else."""
    settings = {name: value for name, value in block.settings.items() if name not in ABOUT}
    return Evidence(block.experiment, block.rows, settings)
