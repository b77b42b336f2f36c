"""What can be requested of a circuit: mean ablation, knockout, pruning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

from rebinding.evidence import Kind, OnPrompts
from rebinding.evidence.request import Facet
from rebinding.experiments.answers import MEASURES
from rebinding.experiments.circuit.random_circuits import Match
from rebinding.experiments.prompts import MEANS_ID, PRUNING_ID, Prompts
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.paper.numbers import ROLE_OF_GROUP
from rebinding.paper.procedure import CircuitConventions
from rebinding.task.answers import AnswerSet
from rebinding.task.designs import Design, DesignName

Which: TypeAlias = Literal["full", "circuit", "less", "random"]
"""The whole model, the circuit, the circuit less some heads, and random circuits of its size."""
VARIANT = ("which", "group", "layer", "head", "draw")
"""The columns that say which circuit a row is of: `group`, `layer` and `head` (-1 for whole groups) are what `less`
lacks, and `draw` numbers the random ones."""
ABLATION = Kind("ablation", ("prompt", *VARIANT, *MEASURES))
KNOCKOUT = Kind("knockout", ("prompt", *VARIANT, *MEASURES, "moved"), edits=("which",), unedited=("which", "full"))
"""`moved` is how far the heads of a variant were from the means that replace them; in the whole model nothing is."""
PRUNING = Kind(
    "pruning", ("order", "group", "layer", "head", "role", "whole", "before", "drop", "removed"), unit="order"
)
"""A head tried on a walk: the measure of the whole model, and of what was left of the circuit before the trial."""
CONTRIBUTIONS = Kind("contributions", ("prompt", "group", "layer", "head", "role", "gone", "before", "without"))
"""Whether a prompt is answered with a head of the circuit and without it, beside a set of others that are `gone`."""
STREAM = Kind("stream", ("prompt", "before", "after", "moved"))
"""The answer's margin in a circuit, and with another residual stream at one token of the context; `moved` is how far
the one stream is from the other."""
MEANS = Kind("means", ())
KNOCKED = Kind("circuits out", ("circuit", "prompt", *MEASURES, "moved"))
"""The same, taken out of the model: what `knock_out` makes."""
PruneBy: TypeAlias = Literal["label_logit", "margin"]
Beside: TypeAlias = Literal["groups", "heads", "random"]
"""What is measured beside the circuit: it without each group and random ones; it without each head; random ones."""
PROMPTS_OF_MEANS = {"published": 100, "partner_second": 100, "counterbalanced": 108}
"""As published; three whole blocks of the counterbalanced design."""
DRAWS = 10
ORDERS = 8
"""Walks of pruning, in the published order and in shuffled ones."""
RANDOM_SETS = 8
STREAM_NOISE = "rotation"
"""The noise that keeps the words and moves every statement on by one slot."""


class Ablated(NamedTuple):
    """Which circuit a row of an ablation is of; the columns of `VARIANT`."""

    which: Which
    group: str = ""
    layer: int = -1
    head: int = -1
    draw: int = -1


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


def roles_of(circuit: Circuit) -> list[str]:
    """The tokens at which a circuit acts."""
    return sorted({head.role for head in circuit.heads})


def request_means(prompts: Prompts, drawn: Design, mean_set: DesignName) -> Means:
    """What heads are held at: the mean of z over prompts of their own."""
    options: dict[str, Any] = {"boxes": drawn.boxes, "operations": drawn.operations, "verb": drawn.verb}
    options["narrative"] = drawn.narrative
    ids = range(MEANS_ID, MEANS_ID + PROMPTS_OF_MEANS[mean_set])
    return Means(prompts.draw(prompts.design(mean_set, **options), ids))


def request_ablation(
    prompts: Prompts,
    circuit: Circuit,
    drawn: Design,
    mean_set: DesignName,
    *,
    n: int,
    beside: Beside,
    match: Match = "role",
    answers: AnswerSet = "continuation",
) -> Ablation:
    """The full model and the circuit; beside them random circuits, with the circuit less one group each or without, or
    the circuit less one head each."""
    shown = prompts.draw_with(drawn, prompts.evaluation, n, roles_of(circuit))
    return Ablation(shown, request_means(prompts, drawn, mean_set), circuit.heads, beside, DRAWS, match, answers)


def request_pruning(prompts: Prompts, circuit: Circuit, conventions: CircuitConventions, *, n: int) -> Pruning:
    """The published walk over a circuit, in its own order and in shuffled ones, on prompts like those of discovery."""
    drawn = prompts.design(conventions.design)
    shown = prompts.draw_with(drawn, PRUNING_ID, n, roles_of(circuit))
    means = request_means(prompts, drawn, conventions.means)
    return Pruning(
        shown, means, circuit.heads, ORDERS, conventions.prune_by, conventions.prune_step, conventions.answers
    )


def request_contributions(
    prompts: Prompts, drawn: Design, circuit: Circuit, n: int, *, conventions: CircuitConventions
) -> Contributions:
    """Every head of a circuit, on prompts that it was not found on."""
    shown = prompts.draw_with(drawn, prompts.evaluation, n, roles_of(circuit))
    return Contributions(
        shown, request_means(prompts, drawn, conventions.means), circuit.heads, RANDOM_SETS, conventions.answers
    )


def request_knockout(prompts: Prompts, drawn: Design, circuit: Circuit, n: int) -> Knockout:
    """A circuit, and random sets of other heads with as many at each role in each layer; in stories, and at means, in
    which no slot and no order of names is more frequent than another (as many boxes and swaps as in those of the run).
    """
    even = prompts.design("counterbalanced", boxes=drawn.boxes, operations=drawn.operations, verb=drawn.verb)
    shown = prompts.draw_with(even, prompts.evaluation, n, roles_of(circuit))
    return Knockout(shown, request_means(prompts, even, "counterbalanced"), circuit.heads, DRAWS)


def request_stream(
    prompts: Prompts, drawn: Design, circuit: Circuit, n: int, *, conventions: CircuitConventions
) -> Stream:
    """The circuit without group E; where E stands in the paper, in front of the layers of D, which reads it."""
    role, bare = ROLE_OF_GROUP["E"], circuit.without(circuit.groups.get("E", ()))
    shown = prompts.draw_with(drawn, prompts.evaluation, n, [*roles_of(bare), role], ("noise", STREAM_NOISE))
    layers = tuple(sorted({layer for layer, _ in circuit.group("D")}))
    return Stream(
        shown, request_means(prompts, drawn, conventions.means), bare.heads, role, layers, conventions.answers
    )
