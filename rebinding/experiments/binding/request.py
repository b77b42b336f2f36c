"""What can be asked of section 5."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from rebinding.evidence import Kind, OnPrompts, PromptSet, Request
from rebinding.evidence.request import Facet
from rebinding.experiments.binding.cases import Slots
from rebinding.experiments.binding.conditions import Condition
from rebinding.experiments.binding.directions import Point
from rebinding.experiments.binding.kinds import BINDING, DIRECTIONS, EXCHANGE
from rebinding.paper.circuit import Head
from rebinding.surgery.sites import Scope
from rebinding.world.answers import AnswerRule


@dataclass(frozen=True)
class MeanVectors(Request):
    """The directions of some heads: mean queries and keys over prompts that ask for the object of each slot."""

    KIND: ClassVar[Kind] = DIRECTIONS
    slots: tuple[PromptSet, ...]
    heads: tuple[Head, ...]
    point: Point

    @property
    def n(self) -> int:
        return len(self.slots[0].ids)

    @property
    def facets(self) -> Mapping[str, Facet]:
        return self.slots[0].facets


@dataclass(frozen=True)
class Shifts(OnPrompts):
    """Queries and keys of some heads shifted from slot i to slot j along their directions.

    `variation` is what this way of doing it is called; what it is stands in the other fields. Every prompt is run with
    every one of `batches`, directions that were measured on disjoint sets of prompts.
    """

    KIND: ClassVar[Kind] = BINDING
    batches: tuple[MeanVectors, ...]
    variation: str
    slots: tuple[Slots, ...]
    conditions: tuple[Condition, ...]
    scope: Scope
    draws: int
    read: Literal["shifted", "both"]
    """The tokens whose attention counts; all of it is kept, and this says how its table is made."""
    answers: AnswerRule

    @property
    def facets(self) -> Mapping[str, Facet]:
        return {"variation": self.variation, **self.prompts.facets}


@dataclass(frozen=True)
class Exchange(OnPrompts):
    """The query of some heads exchanged for that of the same story asked about another slot; the keys of two slots
    exchanged. `donors` are those stories, a set for every slot."""

    KIND: ClassVar[Kind] = EXCHANGE
    donors: tuple[PromptSet, ...]
    heads: tuple[Head, ...]
    slots: tuple[Slots, ...]
    answers: AnswerRule
