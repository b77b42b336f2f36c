"""Requests about a circuit: mean ablation, knockout, pruning, contributions, and the residual stream at E.

**Contributions**, as the text of section 4.1 has them: what a head does for its circuit when a set of other heads is
removed.

    contribution of v without K = (F(C - K) - F(C - K - v)) / F(C - K - v), F candidate accuracy

The paper does not list its sets K: the text says "a subset", and the released code uses none. Ours are declared and the
same for all heads (a set never contains v itself): the empty set; every whole group, so that v is removed together with
the rest of its group as in the work that the text cites; and random sets, which contain each head with a chance of one
in eight, few enough that the remaining circuit may still answer. Heads that share a set share C - K, and no circuit is
run twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar, Literal, TypeAlias

import pandas as pd
from torch import Tensor

from rebinding.evidence import Kind
from rebinding.evidence.request import Facet
from rebinding.experiments.ablation import DRAWS, VARIANT, Ablation, Comparison, OfCircuit, request_means
from rebinding.experiments.prompts import PRUNING_ID, SHUFFLED_ID, Stories
from rebinding.experiments.random_draws import WALKS, Match, has_heads_to_spare
from rebinding.experiments.tokens import MEASURES
from rebinding.paper.circuit import Circuit, CircuitHead, Head
from rebinding.paper.numbers import ROLE_OF_GROUP
from rebinding.paper.procedure import CircuitConventions
from rebinding.task.designs import Design, DesignName
from rebinding.task.prompts import AnswerSet

Hits: TypeAlias = Callable[[Sequence[Circuit]], Tensor]
"""Whether each of many circuits answers: (circuit, prompt)."""
NOTHING = "nothing"
LEFT_OUT = 1 / 8
"""The chance that a random set contains a head."""


def removed_sets(circuit: Circuit, random_sets: int, seed: int = WALKS) -> dict[str, tuple[CircuitHead, ...]]:
    """The sets of removed heads, by name."""
    generator = random.Random(seed)
    chosen = {
        f"random {number}": tuple(head for head in circuit.heads if generator.random() < LEFT_OUT)
        for number in range(random_sets)
    }
    return {NOTHING: (), **{f"group {name}": heads for name, heads in circuit.groups.items()}, **chosen}


def contributions(
    circuit: Circuit, hits: Hits, removed_sets: Mapping[str, tuple[CircuitHead, ...]], ids: Sequence[int]
) -> pd.DataFrame:
    """Whether each prompt is answered with a head and without it: a row per set, head and prompt."""
    pairs = {
        (name, head): (circuit.without(other for other in heads if other != head), circuit.without([*heads, head]))
        for name, heads in removed_sets.items()
        for head in circuit.heads
    }
    circuits = list(dict.fromkeys(variant for pair in pairs.values() for variant in pair))
    results = dict(zip(circuits, hits(circuits).cpu().numpy(), strict=True))
    frames = [
        pd.DataFrame({"prompt": list(ids), "before": results[with_head], "without": results[without]}).assign(
            **head._asdict(), removed_set=name
        )
        for (name, head), (with_head, without) in pairs.items()
    ]
    return pd.concat(frames, ignore_index=True)


KNOCKOUT = Kind(
    "knockout",
    ("prompt", *VARIANT, *MEASURES, "relative_change"),
    edit_columns=("variant",),
    unedited=("variant", "full"),
)
"""`relative_change` is the change from a variant's heads to the means that replace them; 0 in the full model."""
GROUP_KNOCKOUT = replace(KNOCKOUT, name="group-knockout")
PRUNING = Kind(
    "pruning", ("order", "group", "layer", "head", "role", "full_model", "before", "drop", "removed"), unit="order"
)
"""A row per trial of a walk: the measure of the full model (`full_model`), and of the circuit before the trial."""
CONTRIBUTIONS = Kind("contributions", ("prompt", "group", "layer", "head", "role", "removed_set", "before", "without"))
"""Hits of the circuit with a head and without it, when a set of other heads is also removed (`removed_set`)."""
STREAM = Kind("stream", ("prompt", "before", "after", "relative_change"))
"""The answer's margin in a circuit before and after the residual stream at one token of the context is replaced;
`relative_change` is that of the stream."""
KNOCKED = Kind("circuits out", ("circuit", "prompt", *MEASURES, "relative_change"))
"""Circuits ablated in the full model: the result of `knock_out`."""
PruneBy: TypeAlias = Literal["label_logit", "margin"]
SETS_BESIDE_GROUP = 10
ORDERS = 8
"""Walks of pruning, in the published order and in shuffled ones."""
RANDOM_SETS = 8
STREAM_NOISE = "rotation"
"""The noise that keeps the words and moves every statement by one slot."""


@dataclass(frozen=True)
class Knockout(OfCircuit):
    """The full model, the same with a circuit's heads mean-ablated, and with random sets of other heads ablated."""

    KIND: ClassVar[Kind] = KNOCKOUT
    draws: int


@dataclass(frozen=True)
class GroupKnockout(Knockout):
    """The same for a group of a circuit, and for each of its heads alone; its random sets have none of the heads
    `spared`, which are the circuit's."""

    KIND: ClassVar[Kind] = GROUP_KNOCKOUT
    spared: tuple[Head, ...]


@dataclass(frozen=True)
class Pruning(OfCircuit):
    """The published walk over a circuit, in its own order and in shuffled orders; each has its own part of the
    prompts."""

    KIND: ClassVar[Kind] = PRUNING
    PER_PROMPT: ClassVar[bool] = False
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
    """A circuit with and without each of its heads, when sets of other heads are removed; `random_sets` of these are
    drawn."""

    KIND: ClassVar[Kind] = CONTRIBUTIONS
    random_sets: int
    answers: AnswerSet = "continuation"


@dataclass(frozen=True)
class Stream(OfCircuit):
    """A circuit, and the same with the noise's residual stream at a token of the context, at the input of layers."""

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


def request_ablation(
    prompts: Stories,
    circuit: Circuit,
    stories: Design,
    mean_set: DesignName,
    *,
    n: int,
    comparison: Comparison,
    match: Match = "role",
    answers: AnswerSet = "continuation",
    unpruned: Mapping[str, int] = MappingProxyType({}),
) -> Ablation:
    """Request the full model, the circuit, and its `comparison`: the circuit without each group and random circuits,
    the circuit without each head, or random circuits; and random circuits with the sizes `unpruned`, by role."""
    chosen = prompts.draw_with(stories, prompts.evaluation, n, roles_of(circuit))
    return Ablation(
        chosen,
        request_means(prompts, stories, mean_set),
        circuit.heads,
        comparison,
        DRAWS,
        match,
        answers,
        tuple(unpruned.items()),
    )


def request_pruning(prompts: Stories, circuit: Circuit, conventions: CircuitConventions, *, n: int) -> Pruning:
    """Request the published walk, in the circuit's order and in shuffled orders, on prompts like those of discovery:
    `n` for each walk."""
    stories = prompts.design(conventions.design)
    roles, rest = roles_of(circuit), (ORDERS - 1) * n
    ids = [prompts.draw_with(stories, *at, roles).ids for at in ((PRUNING_ID, n), (SHUFFLED_ID, rest))]
    chosen = prompts.draw(stories, ids[0] + ids[1])
    means = request_means(prompts, stories, conventions.means)
    return Pruning(
        chosen, means, circuit.heads, ORDERS, conventions.prune_by, conventions.prune_step, conventions.answers
    )


def request_contributions(
    prompts: Stories, stories: Design, circuit: Circuit, n: int, *, conventions: CircuitConventions
) -> Contributions:
    """Request the contribution of every head of a circuit, on prompts that discovery did not use."""
    chosen = prompts.draw_with(stories, prompts.evaluation, n, roles_of(circuit))
    return Contributions(
        chosen, request_means(prompts, stories, conventions.means), circuit.heads, RANDOM_SETS, conventions.answers
    )


def request_knockout(prompts: Stories, stories: Design, circuit: Circuit, n: int) -> Knockout:
    """Request the knockout of a circuit, and of random sets of other heads with as many at each role in each layer.
    Stories and means are counterbalanced: no slot and no order of names is more frequent than another. Boxes and swaps
    are as many as in the run's stories."""
    balanced = prompts.design("counterbalanced", boxes=stories.boxes, operations=stories.operations, verb=stories.verb)
    chosen = prompts.draw_with(balanced, prompts.evaluation, n, roles_of(circuit))
    return Knockout(chosen, request_means(prompts, balanced, "counterbalanced"), circuit.heads, DRAWS)


def request_group_knockout(
    prompts: Stories, stories: Design, circuit: Circuit, group: str, n: int, heads: Sequence[Head]
) -> GroupKnockout:
    """Request the knockout of a group, and of random sets of the model's `heads` that are in no group of the circuit;
    of none where its layers have too few."""
    own, spared = Circuit(circuit.groups[group]), tuple(sorted({(head.layer, head.head) for head in circuit.heads}))
    base = request_knockout(prompts, stories, own, n)
    free = [head for head in heads if head not in spared]
    draws = SETS_BESIDE_GROUP if has_heads_to_spare(own, free) else 0
    return GroupKnockout(base.prompts, base.means, own.heads, draws, spared)


def request_stream(
    prompts: Stories, stories: Design, circuit: Circuit, n: int, *, conventions: CircuitConventions
) -> Stream:
    """Request the circuit without group E, at E's token in the paper and at the layers of D, which reads it."""
    role, bare = ROLE_OF_GROUP["E"], circuit.without(circuit.groups.get("E", ()))
    chosen = prompts.draw_with(stories, prompts.evaluation, n, [*roles_of(bare), role], ("noise", STREAM_NOISE))
    layers = tuple(sorted({layer for layer, _ in circuit.group("D")}))
    return Stream(
        chosen, request_means(prompts, stories, conventions.means), bare.heads, role, layers, conventions.answers
    )
