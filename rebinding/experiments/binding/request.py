"""What can be requested of section 5: queries and keys shifted from slot to slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar, Literal

from rebinding.evidence import Kind, OnPrompts, PromptSet, Request
from rebinding.evidence.request import Facet
from rebinding.experiments.binding.candidates import conditions_of_text
from rebinding.experiments.binding.conditions import (
    MATCHED_KINDS,
    MATCHED_RANDOM,
    PUBLISHED_CONDITIONS,
    TABLE,
    Condition,
)
from rebinding.experiments.binding.directions import Point
from rebinding.experiments.binding.observations import Slots, every_pair
from rebinding.experiments.prompts import DIRECTIONS_ID, DISCOVERY_ID, Prompts
from rebinding.paper.circuit import Circuit, Head
from rebinding.paper.procedure import BindingConventions
from rebinding.surgery.sites import Scope
from rebinding.task.answers import AnswerRule
from rebinding.task.designs import Design, DesignName

BINDING = Kind(
    "binding",
    ("prompt", "i", "j", "correct", "condition", "draw", "layer", "head", "moved"),
    numbered=r"(before|after)_(box|object|logit)_\d+",
    edits=(),  # a direction measured to be nothing is a finding; together they must move something
)
EXCHANGE = Kind("exchange", BINDING.columns, numbered=BINDING.numbered, edits=())
"""The same with real queries and keys in the place of shifted ones."""
DIRECTION_VECTORS = Kind("directions", ())
SLOTS = 3
POINT: Point = "raw"
"""Where queries and keys are shifted, as published: before any norm and before RoPE."""
FIRST_PAIR: tuple[Slots, ...] = ((1, 0),)
_, _, MATCHED_QK = MATCHED_RANDOM


@dataclass(frozen=True)
class Variation:
    """Which conditions are run, and what is done otherwise than the procedure says; None where nothing is."""

    conditions: tuple[Condition, ...]
    pairs: tuple[Slots, ...] = FIRST_PAIR
    scope: Scope | None = None
    random: bool = False
    """Whether random directions are drawn many times."""
    candidates: bool = False
    """Whether it has the conditions of the text as well, where the procedure names them."""
    narrative: bool = False
    """Whether sentences about nothing stand between the statements; directions are those of plain stories."""


VARIATIONS: Mapping[str, Variation] = MappingProxyType(
    {
        "published": Variation(PUBLISHED_CONDITIONS, candidates=True),
        "controlled": Variation((*TABLE, MATCHED_QK), candidates=True),
        "isolated": Variation(TABLE, scope="head"),
        "third slot": Variation(TABLE, pairs=((1, 2),)),
        "narrative": Variation(TABLE, narrative=True),
        "random directions": Variation((*TABLE, *MATCHED_RANDOM, *MATCHED_KINDS), random=True),
    }
)
"""The two procedures, and what else is asked of the first."""


@dataclass(frozen=True)
class MeanVectors(Request):
    """The directions of some heads: mean queries and keys over prompts that ask for the object of each slot."""

    KIND: ClassVar[Kind] = DIRECTION_VECTORS
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
    epsilon: float
    """What is added to attention in the log ratio."""

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
    epsilon: float


def request_shifts(
    prompts: Prompts,
    circuit: Circuit,
    name: DesignName,
    variation: str,
    conventions: BindingConventions,
    *,
    n: int,
    directions: int,
    draws: int,
    cut: int = 0,
) -> Shifts:
    """Queries and keys of group B shifted, in one of the variations; directions are the mean of so many prompts. All
    prompts are that many tokens short."""
    how = VARIATIONS[variation]
    shown: DesignName = "counterbalanced" if conventions.pairs == "every" else name
    every = shown == "counterbalanced"
    eyes, ids = evaluation_prompts(prompts, name, conventions, n)
    return Shifts(
        prompts=prompts.draw(replace(eyes, narrative=how.narrative), ids, cut=cut),
        batches=tuple(
            request_vectors(prompts, shown, circuit.group("B"), range(start, start + directions), cut)
            for start in range(DIRECTIONS_ID, DIRECTIONS_ID + conventions.batches * directions, directions)
        ),
        variation=variation,
        slots=every_pair(SLOTS) if every else how.pairs,
        conditions=(*how.conditions, *(conditions_of_text(conventions) if how.candidates else ())),
        scope=how.scope or conventions.scope,
        draws=draws if how.random else 1,
        read=conventions.read,
        answers=conventions.answers,
        epsilon=conventions.epsilon,
    )


def evaluation_prompts(
    prompts: Prompts, name: DesignName, conventions: BindingConventions, n: int
) -> tuple[Design, range]:
    """The stories on which queries and keys are edited."""
    first = prompts.evaluation if conventions.ids == "held_out" else DISCOVERY_ID + prompts.first
    every = conventions.pairs == "every" or name == "counterbalanced"
    eyes = prompts.design("counterbalanced", split="evaluation") if every else prompts.design(name)
    return eyes, range(first, first + n)


def request_exchange(
    prompts: Prompts, drawn: Design, circuit: Circuit, n: int, *, conventions: BindingConventions
) -> Exchange:
    """Real queries and keys of group B, on the stories on which they are shifted."""
    eyes, ids = evaluation_prompts(prompts, drawn.name, conventions, n)
    donors = tuple(prompts.draw(eyes, ids, ("slot", str(slot))) for slot in range(SLOTS))
    pairs = every_pair(SLOTS) if eyes.name == "counterbalanced" else FIRST_PAIR
    return Exchange(
        prompts.draw(eyes, ids), donors, circuit.group("B"), pairs, conventions.answers, conventions.epsilon
    )


def request_vectors(
    prompts: Prompts, name: DesignName, heads: Sequence[Head], ids: Sequence[int], cut: int = 0
) -> MeanVectors:
    """The directions of some heads, from these prompts for every slot; measured once for all variations."""
    asks = prompts.design(name, split="directions" if name == "counterbalanced" else None)
    slots = tuple(prompts.draw(asks, ids, ("slot", str(slot)), cut=cut) for slot in range(SLOTS))
    return MeanVectors(slots, tuple(heads), POINT)
