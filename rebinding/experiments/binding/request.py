"""Requests of section 5: shift or exchange queries and keys between slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar, Literal, Self

from rebinding.evidence import Kind, OnPrompts, PromptSet, Request
from rebinding.evidence.request import Facet
from rebinding.experiments.binding.conditions import (
    MATCHED_KINDS,
    MATCHED_RANDOM,
    PUBLISHED_CONDITIONS,
    TABLE,
    Condition,
    Slots,
    conditions_of_text,
    every_pair,
)
from rebinding.experiments.prompts import DIRECTIONS_ID, DISCOVERY_ID, Stories
from rebinding.paper.circuit import Circuit, Head
from rebinding.paper.procedure import BindingConventions
from rebinding.surgery.sites import Scope
from rebinding.task.designs import Design, DesignName
from rebinding.task.prompts import AnswerRule

BINDING = Kind(
    "binding",
    ("prompt", "i", "j", "correct", "condition", "draw", "layer", "head", "relative_change"),
    numbered=r"(before|after)_(box|object|logit)_\d+",
    edit_columns=(),  # a direction of size zero is a finding; all together must change something
)
EXCHANGE = Kind("exchange", BINDING.columns, numbered=BINDING.numbered, edit_columns=())
"""The same with real queries and keys instead of shifted ones."""
DIRECTION_VECTORS = Kind("directions", ())
SLOTS = 3
FIRST_PAIR: tuple[Slots, ...] = ((1, 0),)
_, _, MATCHED_QK = MATCHED_RANDOM


@dataclass(frozen=True)
class Variation:
    """The conditions of a variation, and its differences from the procedure; None: no difference."""

    conditions: tuple[Condition, ...]
    pairs: tuple[Slots, ...] = FIRST_PAIR
    scope: Scope | None = None
    random: bool = False
    """Whether random directions are drawn many times."""
    candidates: bool = False
    """Whether to run the conditions of the text as well, if the procedure names them."""
    narrative: bool = False
    """Whether filler sentences stand between the statements; directions are those of plain stories."""


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
"""The two procedures, and variations of the first."""


@dataclass(frozen=True)
class MeanVectors(Request):
    """The directions of some heads: mean queries and keys over prompts that ask for the object of each slot."""

    KIND: ClassVar[Kind] = DIRECTION_VECTORS
    slots: tuple[PromptSet, ...]
    heads: tuple[Head, ...]

    @property
    def n(self) -> int:
        return len(self.slots[0].ids)

    @property
    def facets(self) -> Mapping[str, Facet]:
        return self.slots[0].facets


@dataclass(frozen=True)
class Shifts(OnPrompts):
    """Queries and keys of some heads shifted from slot i to slot j along their directions.

    `variation` is the name of the variation; the other fields say what it does. Every prompt is run with each of
    `batches`, directions measured on disjoint sets of prompts.
    """

    KIND: ClassVar[Kind] = BINDING
    batches: tuple[MeanVectors, ...]
    variation: str
    slots: tuple[Slots, ...]
    conditions: tuple[Condition, ...]
    scope: Scope
    draws: int
    read: Literal["shifted", "both"]
    """The tokens whose attention counts. The evidence keeps all attention; this says how to make the table."""
    answers: AnswerRule
    epsilon: float
    """The number that is added to attention in the log ratio."""

    @property
    def facets(self) -> Mapping[str, Facet]:
        return {"variation": self.variation, **self.prompts.facets}


@dataclass(frozen=True)
class Exchange(OnPrompts):
    """Exchange the query of some heads with that of the same story with a question about another slot, and exchange the
    keys of two slots. `donors` are these stories, a set for every slot."""

    KIND: ClassVar[Kind] = EXCHANGE
    donors: tuple[PromptSet, ...]
    heads: tuple[Head, ...]
    slots: tuple[Slots, ...]
    answers: AnswerRule
    epsilon: float

    def part(self, cut: Callable[[PromptSet], PromptSet]) -> Self:
        return replace(self, prompts=cut(self.prompts), donors=tuple(map(cut, self.donors)))


def request_shifts(
    prompts: Stories,
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
    """Request shifts of the queries and keys of group B in one variation. Directions are means over `directions`
    prompts; all prompts lack their last `cut` tokens."""
    options = VARIATIONS[variation]
    directions_design: DesignName = "counterbalanced" if conventions.pairs == "every" else name
    is_balanced = directions_design == "counterbalanced"
    stories, ids = evaluation_prompts(prompts, name, conventions, n)
    return Shifts(
        prompts=prompts.draw(replace(stories, narrative=options.narrative), ids, cut=cut),
        batches=tuple(
            request_vectors(prompts, directions_design, circuit.group("B"), range(start, start + directions), cut)
            for start in range(DIRECTIONS_ID, DIRECTIONS_ID + conventions.batches * directions, directions)
        ),
        variation=variation,
        slots=every_pair(SLOTS) if is_balanced else options.pairs,
        conditions=(*options.conditions, *(conditions_of_text(conventions) if options.candidates else ())),
        scope=options.scope or conventions.scope,
        draws=draws if options.random else 1,
        read=conventions.read,
        answers=conventions.answers,
        epsilon=conventions.epsilon,
    )


def evaluation_prompts(
    prompts: Stories, name: DesignName, conventions: BindingConventions, n: int
) -> tuple[Design, range]:
    """The stories and ids on which queries and keys are edited."""
    first = prompts.evaluation if conventions.ids == "held_out" else DISCOVERY_ID + prompts.skip_prompts
    is_balanced = conventions.pairs == "every" or name == "counterbalanced"
    stories = prompts.design("counterbalanced", split="evaluation") if is_balanced else prompts.design(name)
    return stories, range(first, first + n)


def request_exchange(
    prompts: Stories, run_stories: Design, circuit: Circuit, n: int, *, conventions: BindingConventions
) -> Exchange:
    """Request an exchange of real queries and keys of group B, on the stories of the shifts."""
    stories, ids = evaluation_prompts(prompts, run_stories.name, conventions, n)
    donors = tuple(prompts.draw(stories, ids, ("slot", str(slot))) for slot in range(SLOTS))
    pairs = every_pair(SLOTS) if stories.name == "counterbalanced" else FIRST_PAIR
    return Exchange(
        prompts.draw(stories, ids), donors, circuit.group("B"), pairs, conventions.answers, conventions.epsilon
    )


def request_vectors(
    prompts: Stories, name: DesignName, heads: Sequence[Head], ids: Sequence[int], cut: int = 0
) -> MeanVectors:
    """Request the directions of some heads from these prompts for every slot; measured once for all variations."""
    stories = prompts.design(name, split="directions" if name == "counterbalanced" else None)
    slots = tuple(prompts.draw(stories, ids, ("slot", str(slot)), cut=cut) for slot in range(SLOTS))
    return MeanVectors(slots, tuple(heads))
