"""What can be asked of section 4.1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from rebinding.evidence import Kind, OnPrompts
from rebinding.evidence.request import Facet
from rebinding.experiments.circuit.kinds import ABILITY, ABLATION, MEANS, PATHS, PRUNING
from rebinding.experiments.circuit.paths import PathSettings, Stage
from rebinding.paper.circuit import CircuitHead, Head

Beside: TypeAlias = Literal["groups", "heads", "random"]
"""What is measured beside the circuit: it without each group and random ones; it without each head; random ones."""


@dataclass(frozen=True)
class Ability(OnPrompts):
    """The unedited model."""

    KIND: ClassVar[Kind] = ABILITY


@dataclass(frozen=True)
class Means(OnPrompts):
    """The mean of z over prompts, by layer, token and head: what ablated heads are held at."""

    KIND: ClassVar[Kind] = MEANS


@dataclass(frozen=True)
class Ablation(OnPrompts):
    """The full model and a circuit with all other heads held at their means, and beside it others."""

    KIND: ClassVar[Kind] = ABLATION
    means: Means
    circuit: tuple[CircuitHead, ...]
    beside: Beside
    draws: int

    @property
    def facets(self) -> Mapping[str, Facet]:
        return {"beside": self.beside, **self.prompts.facets, "means": self.means.prompts.design}


@dataclass(frozen=True)
class Pruning(OnPrompts):
    """The published walk over a circuit, in its own order and in shuffled ones."""

    KIND: ClassVar[Kind] = PRUNING
    means: Means
    circuit: tuple[CircuitHead, ...]
    orders: int

    @property
    def n(self) -> int:
        return self.orders

    @property
    def facets(self) -> Mapping[str, Facet]:
        return {**self.prompts.facets, "means": self.means.prompts.design, "heads": len(self.circuit)}


@dataclass(frozen=True)
class Paths(OnPrompts):
    """Path patching of one stage: every head as a sender to the given receivers."""

    KIND: ClassVar[Kind] = PATHS
    stage: Stage
    receivers: tuple[Head, ...]
    how: PathSettings

    @property
    def facets(self) -> Mapping[str, Facet]:
        literal = f"{self.stage.group} to {self.stage.component or 'logits'} at {self.stage.at or 'readout'}"
        return {"stage": literal, "receivers": len(self.receivers), **self.prompts.facets}
