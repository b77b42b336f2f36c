"""What can be asked of section 4.1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from rebinding.evidence import Kind, OnPrompts
from rebinding.evidence.request import Facet
from rebinding.experiments.circuit.kinds import (
    ABILITY,
    ABLATION,
    CONTRIBUTIONS,
    ELSEWHERE,
    KNOCKOUT,
    MEANS,
    PATHS,
    PRUNING,
    STREAM,
)
from rebinding.experiments.circuit.paths import PathSettings, Stage
from rebinding.experiments.circuit.random_circuits import Match
from rebinding.paper.circuit import CircuitHead, Head
from rebinding.world.answers import AnswerSet

PruneBy: TypeAlias = Literal["label_logit", "margin"]
Beside: TypeAlias = Literal["groups", "heads", "random"]
"""What is measured beside the circuit: it without each group and random ones; it without each head; random ones."""


@dataclass(frozen=True)
class Ability(OnPrompts):
    """The unedited model; `answers` says which tokens stand for an object."""

    KIND: ClassVar[Kind] = ABILITY
    answers: AnswerSet = "continuation"


@dataclass(frozen=True)
class Means(OnPrompts):
    """The mean of z over prompts, by layer, token and head: what ablated heads are held at."""

    KIND: ClassVar[Kind] = MEANS


@dataclass(frozen=True)
class OfCircuit(OnPrompts):
    """Whatever holds heads at their means to see what a circuit is worth."""

    means: Means
    circuit: tuple[CircuitHead, ...]

    @property
    def facets(self) -> Mapping[str, Facet]:
        return {**self.prompts.facets, "means": self.means.prompts.design, "heads": len(self.circuit)}


@dataclass(frozen=True)
class Ablation(OfCircuit):
    """The full model and a circuit with all other heads held at their means, and beside it others."""

    KIND: ClassVar[Kind] = ABLATION
    beside: Beside
    draws: int
    match: Match = "role"
    answers: AnswerSet = "continuation"

    @property
    def facets(self) -> Mapping[str, Facet]:
        told: dict[str, Facet] = {"beside": self.beside, "means": self.means.prompts.design, "match": self.match}
        return {**self.prompts.facets, **told}


@dataclass(frozen=True)
class Elsewhere(Ablation):
    """The same on questions about a box that is not swapped, of the circuit's heads whose tokens these prompts have."""

    KIND: ClassVar[Kind] = ELSEWHERE


@dataclass(frozen=True)
class Knockout(OfCircuit):
    """The full model, and the same with a circuit's heads held at their means; beside it random sets of other heads."""

    KIND: ClassVar[Kind] = KNOCKOUT
    draws: int


@dataclass(frozen=True)
class Pruning(OfCircuit):
    """The published walk over a circuit, in its own order and in shuffled ones."""

    KIND: ClassVar[Kind] = PRUNING
    orders: int
    by: PruneBy = "label_logit"
    step: float = 0.01
    answers: AnswerSet = "continuation"

    @property
    def n(self) -> int:
        return self.orders

    @property
    def facets(self) -> Mapping[str, Facet]:
        return {**super().facets, "by": self.by}


@dataclass(frozen=True)
class Contributions(OfCircuit):
    """A circuit with and without each of its heads, beside sets of others that are gone; `random_sets` are drawn."""

    KIND: ClassVar[Kind] = CONTRIBUTIONS
    random_sets: int
    answers: AnswerSet = "continuation"


@dataclass(frozen=True)
class Stream(OfCircuit):
    """A circuit, and the same with the noise's residual stream at a token of the context, in front of some layers."""

    KIND: ClassVar[Kind] = STREAM
    role: str
    layers: tuple[int, ...]
    answers: AnswerSet = "continuation"

    @property
    def facets(self) -> Mapping[str, Facet]:
        return {**super().facets, "stream at": self.role, "noise": self.prompts.pairing[-1]}


@dataclass(frozen=True)
class Paths(OnPrompts):
    """Path patching of one stage: heads as senders to the given receivers."""

    KIND: ClassVar[Kind] = PATHS
    stage: Stage
    receivers: tuple[Head, ...]
    how: PathSettings
    senders: tuple[Head, ...] | None = None
    """All heads, where it is not said which."""

    @property
    def facets(self) -> Mapping[str, Facet]:
        literal = f"{self.stage.group} to {self.stage.component or 'logits'} at {self.stage.at or 'readout'}"
        told: dict[str, Facet] = {
            "stage": literal,
            "senders": "all" if self.senders is None else len(self.senders),
            "receivers": len(self.receivers),
            "noise": self.prompts.pairing[-1],
        }
        return {**told, "frozen": self.how.frozen, **self.prompts.facets}
