"""A request: everything that a piece of evidence depends on except the model; its kind, its blocks, its source.

The request alone determines the cache key in memory and in the store (`key`), the settings inside the evidence
(`plain`), its name in the report (`label`) and its caption in figures (`caption`). Two requests are the same evidence
exactly if their keys are equal; no evidence is looked up by a handwritten name.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, Self, TypeAlias

import numpy as np
import pandas as pd

from rebinding.evidence.evidence import Evidence, EvidenceError, merge

Facet: TypeAlias = str | int | None
SHORT = 8
"""Digits of a key that distinguish the requests of a report."""
ABOUT = ("request", "facets", "key")
"""Settings inside the evidence that come from the request."""


def digest(content: Any) -> str:
    """sha256 of plain JSON, independent of the order of names."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


@dataclass(frozen=True)
class Kind:
    """One kind of evidence, declared once, in its experiment. It checks the columns of new evidence, so a column that
    is missing, misspelt or new is an error at once.

    `numbered` is a pattern for families of columns such as `before_logit_0`; `nullable` are columns whose numbers may
    not exist (NaN). `unit` is the column that identifies units. `edit_columns` identify edits, each of which must have
    a positive `relative_change` in some row; None for kinds without edits, or without a record of them. `unedited`
    is a column and its value in baseline rows, in which nothing is edited.
    """

    name: str
    columns: tuple[str, ...]
    numbered: str = "(?!)"
    nullable: tuple[str, ...] = ()
    unit: str = "prompt"
    edit_columns: tuple[str, ...] | None = None
    unedited: tuple[str, str] | None = None

    def evidence(self, rows: pd.DataFrame, settings: Mapping[str, Any]) -> Evidence:
        """Evidence with these rows and settings; raises if the columns are not those of this kind."""
        actual, expected = set(rows.columns), set(self.columns)
        missing = sorted(expected - actual)
        unknown = sorted(name for name in actual - expected if not re.fullmatch(self.numbered, str(name)))
        if missing or unknown:
            raise EvidenceError(f"evidence of {self.name}: missing columns {missing}, unknown columns {unknown}")
        return Evidence(self.name, rows, settings)


@dataclass(frozen=True)
class PromptSet:
    """The prompts of a design with these ids, as a model sees them.

    `tokens` is the sha256 of their token ids, the positions of their roles and their answer tokens: with another
    tokenizer, chat form or word list the same ids are other prompts.
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
    """The construction of each prompt's counterfactual; empty without one."""
    narrative: bool = False
    cut: int = 0
    """The number of tokens removed at the end, so that the readout comes that much earlier."""
    wording: str = "published"

    @property
    def facets(self) -> Mapping[str, Facet]:
        """The properties that distinguish sets of prompts, without those that have their default."""
        defaults: dict[str, Facet] = {
            "split": None, "boxes": None, "operations": 1, "verb": "swap", "narrative": False, "cut": 0,
            "wording": "published",
        }  # fmt: skip
        values = {name: getattr(self, name) for name in defaults}
        return {"design": self.design, **{name: value for name, value in values.items() if value != defaults[name]}}


@dataclass(frozen=True)
class Request:
    """One request. Each kind is a subclass: frozen, hashable, with fields that are plain values, tuples or such
    classes."""

    KIND: ClassVar[Kind]

    def __getstate__(self) -> dict[str, Any]:
        """Only the fields are pickled; a worker recomputes the cached properties."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def plain(self) -> Mapping[str, Any]:
        """Every field, as plain JSON."""
        content: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return MappingProxyType(content)

    @cached_property
    def key(self) -> str:
        """The cache key: the sha256 of the kind and every field."""
        return digest({"kind": self.KIND.name, **self.plain})

    @property
    def n(self) -> int:
        """The number of units that the evidence must have."""
        raise NotImplementedError

    @property
    def facets(self) -> Mapping[str, Facet]:
        """The properties by which a person, and the report, distinguish requests of this kind."""
        raise NotImplementedError

    @property
    def block(self) -> int | None:
        """The number of prompts that are computed and stored together; None for all of them."""
        return None

    @property
    def block_is_large(self) -> bool:
        """Whether a block has so many runs that a device is busy with it alone."""
        return False

    @property
    def edit_columns(self) -> tuple[str, ...] | None:
        """The columns that identify edits, each of which must change what it edits in some row."""
        return self.KIND.edit_columns

    @property
    def label(self) -> str:
        """A name that is unique in a report."""
        return f"{self.caption} #{self.key[:SHORT]}"

    @property
    def caption(self) -> str:
        """The kind, the facets and N in one line."""
        facets = ", ".join(f"{name} {value}" for name, value in self.facets.items() if value is not None)
        return f"{self.KIND.name}: {facets}, N {self.n}"


@dataclass(frozen=True)
class OnPrompts(Request):
    """A request on one set of prompts. Each prompt is a unit, unless a kind says otherwise."""

    PER_PROMPT: ClassVar[bool] = True
    """Whether the rows of a prompt depend on no other prompt of the request."""
    prompts: PromptSet

    @property
    def n(self) -> int:
        return len(self.prompts.ids)

    @property
    def facets(self) -> Mapping[str, Facet]:
        return self.prompts.facets

    def part(self, cut: Callable[[PromptSet], PromptSet]) -> Self:
        """The same request on some of its prompts, those that `cut` leaves. A block of a request is such a part."""
        return replace(self, prompts=cut(self.prompts))


class EvidenceSource(Protocol):
    """Gives the evidence of a request, which may be computed, read, simulated or only counted."""

    def get(self, request: Request) -> Evidence: ...


def describe(request: Request, evidence: Evidence) -> Evidence:
    """The evidence of a request, with the request among its settings.

    Rows come prompt by prompt in the order of the request, however many prompts were computed together.
    """
    rows = evidence.rows
    if "prompt" in rows and isinstance(request, OnPrompts):
        places = {id: place for place, id in enumerate(request.prompts.ids)}
        place_of_row = rows["prompt"].map(places).to_numpy(dtype=np.float64)  # NaN, which sorts last, for no id
        rows = rows.iloc[np.argsort(place_of_row, kind="stable")].reset_index(drop=True)
    about = {"request": dict(request.plain), "facets": dict(request.facets), "key": request.key}
    return request.KIND.evidence(rows, {**evidence.settings, **about})


def join(request: Request, blocks: Sequence[Evidence]) -> Evidence:
    """The evidence of a request from the evidence of its blocks, given in any order."""
    if len(blocks) == 1:
        return blocks[0]
    return describe(request, merge([_without_request(block) for block in blocks]))


def part_of(evidence: Evidence, block: OnPrompts) -> Evidence:
    """The evidence of a block of a request, from that of several blocks together."""
    whole = _without_request(evidence)
    rows = whole.rows[whole.rows["prompt"].isin(block.prompts.ids)]
    return describe(block, Evidence(whole.experiment, rows.reset_index(drop=True), whole.settings))


def _without_request(block: Evidence) -> Evidence:
    """A block without its request: blocks differ in their prompts, and must not differ in any other setting."""
    settings = {name: value for name, value in block.settings.items() if name not in ABOUT}
    return Evidence(block.experiment, block.rows, settings)
