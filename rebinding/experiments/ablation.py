"""Section 4.1: does a circuit do the task while every other head is ablated to its mean?

The mean of z is per layer, absolute token and head, over a stated set of prompts. An ablated run sets every head at
every token to its mean, except that a head of the circuit keeps the value that it computes at the token of its group's
role. MLPs and norms are recomputed; everything happens in one forward pass.

A mean over prompts with fixed slots carries "go to slot 1" into the ablated model, and with it part of the circuit's
task. Prompts that counterbalance the slots cannot carry it. The evidence says which set was used.

Many circuits are evaluated as one batch of mean-ablated runs (`rebinding.surgery.mean_ablated`), which compute five
tokens of a prompt rather than all of it; `method="edits"` runs the same as ordinary edits on any surgeon.

The circuit's own section, questions without a swap and the circuit that a search finds all ablate by what is here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence, Kind, OnPrompts, merge
from rebinding.evidence.request import Facet
from rebinding.experiments.prompts import MEANS_ID, Stories
from rebinding.experiments.random_draws import Match, draw_circuits, draw_sizes
from rebinding.experiments.tokens import (
    CIRCUITS,
    MEASURES,
    Answers,
    as_table,
    full_model,
    positions,
    prompt_blocks,
    token_batch,
)
from rebinding.paper.circuit import MLP, Circuit, CircuitHead
from rebinding.surgery import ActiveHeads, Edit, Read, Surgeon, TorchSurgeon, in_layer
from rebinding.surgery.sites import Reduce, Site
from rebinding.task.designs import Design, DesignName
from rebinding.task.prompts import AnswerSet, TokenizedPrompt

if TYPE_CHECKING:
    from rebinding.experiments.workbench import Workbench

VariantName: TypeAlias = Literal["full", "circuit", "less", "random"]
"""The full model, the circuit, the circuit without some heads, and random circuits of its size."""
VARIANT = ("variant", "group", "layer", "head", "draw")
"""The columns that name the circuit of a row: `group`, `layer` and `head` (-1 for a whole group) are the heads removed
in `less`, and `draw` numbers the random circuits; those of the size before pruning have the group `UNPRUNED`."""
ABLATION = Kind("ablation", ("prompt", *VARIANT, *MEASURES))
MEANS = Kind("means", ())
Comparison: TypeAlias = Literal["groups", "heads", "random"]
"""What the circuit is compared with: itself without each group, and random circuits; itself without each head; random
circuits."""
PROMPTS_OF_MEANS = {"published": 100, "partner_second": 100, "counterbalanced": 108}
"""As published; three whole blocks of the counterbalanced design."""
DRAWS = 10
UNPRUNED = "before pruning"
Method = Literal["batched", "edits"]


class CircuitVariant(NamedTuple):
    """The circuit of a row of an ablation; the columns of `VARIANT`."""

    variant: VariantName
    group: str = ""
    layer: int = -1
    head: int = -1
    draw: int = -1


@dataclass(frozen=True)
class Means(OnPrompts):
    """The mean of z over prompts, by layer, token and head: the values of ablated heads."""

    KIND: ClassVar[Kind] = MEANS
    PER_PROMPT: ClassVar[bool] = False


@dataclass(frozen=True)
class OfCircuit(OnPrompts):
    """A measurement of a circuit with mean ablation."""

    means: Means
    circuit: tuple[CircuitHead, ...]

    @property
    def facets(self) -> Mapping[str, Facet]:
        return {**self.prompts.facets, "means": self.means.prompts.design, "heads": len(self.circuit)}


@dataclass(frozen=True)
class Ablation(OfCircuit):
    """The full model, a circuit with all other heads mean-ablated, and circuits to compare it with."""

    KIND: ClassVar[Kind] = ABLATION
    comparison: Comparison
    draws: int
    match: Match = "role"
    answers: AnswerSet = "continuation"
    unpruned: tuple[tuple[str, int], ...] = ()
    """Heads at each role before pruning: the size of further random circuits."""

    @property
    def facets(self) -> Mapping[str, Facet]:
        facets: dict[str, Facet] = {
            "comparison": self.comparison,
            "means": self.means.prompts.design,
            "match": self.match,
        }
        return {**self.prompts.facets, **facets}


def request_means(prompts: Stories, stories: Design, mean_set: DesignName) -> Means:
    """Request the mean of z over a set of prompts that is used for nothing else."""
    options: dict[str, Any] = {"boxes": stories.boxes, "operations": stories.operations, "verb": stories.verb}
    options["narrative"] = stories.narrative
    ids = range(MEANS_ID, MEANS_ID + PROMPTS_OF_MEANS[mean_set])
    return Means(prompts.draw(prompts.design(mean_set, **options), ids))


def mean_z(
    surgeon: Surgeon, prompts: Sequence[TokenizedPrompt], *, block: int | None = None, site: Site = "z"
) -> list[Tensor]:
    """The mean of z (or of another site) over prompts, per layer: (head, token, head_dim); summed in float64."""
    total: list[Tensor] = []
    for where in prompt_blocks(surgeon, prompts, block):
        values_of_block = surgeon.record(token_batch(prompts[where]), keep={site}).sites[site]
        sums = [values.sum(dim=0, dtype=torch.float64) for values in values_of_block]
        total = sums if not total else [old + new for old, new in zip(total, sums, strict=True)]
    return [values / len(prompts) for values in total]


def evaluate(
    surgeon: Surgeon,
    prompts: Sequence[TokenizedPrompt],
    answers: Answers,
    ids: Sequence[int],
    circuits: Mapping[str, Circuit],
    means: Sequence[Tensor],
    *,
    mean_set: str,
    method: Method = "batched",
    block: int | None = None,
    mlps: Sequence[Tensor] | None = None,
) -> Evidence:
    """Evaluate circuits with all other heads ablated: a row per circuit and prompt. `means` are by layer (head, token,
    head_dim), or (prompt, head, token, head_dim), the values that the ablated heads get in each prompt; with `mlps`,
    (token, width) or (prompt, token, width), MLPs that a circuit does not have are ablated as well."""
    settings: dict[str, Any] = {"ablation": "mean", "mean_set": mean_set}
    parts = []
    for where in prompt_blocks(surgeon, prompts, block):
        values_of_block = [mean[where] if mean.ndim == 4 else mean for mean in means]
        of_mlps = None if mlps is None else [mean[where] if mean.ndim == 3 else mean for mean in mlps]
        measure = measurer(surgeon, prompts[where], answers.of(where), values_of_block, method, mlps=of_mlps)
        values = measure(list(circuits.values()))  # (circuit, prompt, measure)
        parts.append(CIRCUITS.evidence(as_table(list(circuits), ids[where], values), settings))
    return merge(parts)


def active_heads(circuits: Sequence[Circuit], prompts: Sequence[TokenizedPrompt], source: Tensor) -> ActiveHeads:
    """Where heads are not ablated; every circuit has as many of the rows, whose prompts are `source` (row,)."""
    n = len(source) // len(circuits)
    roles = {head.role for circuit in circuits for head in circuit.heads}
    at = {role: positions(prompts, role)[source] for role in roles}  # role -> (row,)
    active = [
        (number, layer, head, role)
        for number, circuit in enumerate(circuits)
        for layer, head, role in dict.fromkeys((node.layer, node.head, node.role) for node in circuit.heads)
    ]
    table = torch.tensor([place[:3] for place in active], dtype=torch.long).reshape(-1, 3)
    circuit, layers, heads = (column.repeat_interleave(n) for column in table.unbind(1))
    rows = circuit * n + torch.arange(n).repeat(len(active))
    by_head = [at[role][number * n : (number + 1) * n] for number, *_, role in active]
    places = torch.cat(by_head) if active else torch.empty(0, dtype=torch.long)
    return ActiveHeads(rows, layers, heads, places)


def measurer(
    surgeon: Surgeon,
    prompts: Sequence[TokenizedPrompt],
    answers: Answers,
    means: Sequence[Tensor],
    method: Method = "batched",
    *,
    apart: bool = False,
    mlps: Sequence[Tensor] | None = None,
) -> Callable[[Sequence[Circuit]], Tensor]:
    """A function that measures circuits with all other heads ablated, and MLPs with `mlps`: (circuit, prompt, measure).
    Prompts are recorded once. With `apart` every circuit has prompts of its own: the first of k circuits the first of k
    equal parts.

    `batched` computes only the tokens with an active head and needs the torch surgeon; `edits` works on any surgeon.
    """
    readout, tokens = positions(prompts, "readout"), token_batch(prompts)
    if method == "batched" and isinstance(surgeon, TorchSurgeon):
        recorded = surgeon.record_mean_ablated(tokens, means, mlps)

        def run(active: ActiveHeads, source: Tensor, take: Reduce) -> Tensor:
            return surgeon.run_mean_ablated(recorded, active, source=source, readout=readout[source], reduce=take)

    else:
        recording = surgeon.record(tokens)

        def run(active: ActiveHeads, source: Tensor, take: Reduce) -> Tensor:
            read = Read("logits", at=readout[source][:, None], reduce=take)
            edits = ablation_edits(means, active, source.numel(), mlps)
            return surgeon.run(recording, edits, [read], source=source)[0]

    def measure(circuits: Sequence[Circuit]) -> Tensor:
        source = torch.arange(len(prompts)).repeat(1 if apart else len(circuits))  # (row,)
        values = run(active_heads(circuits, prompts, source), source, answers.take(source))
        return values.reshape(len(circuits), len(source) // len(circuits), -1)

    return measure


def ablation_edits(
    means: Sequence[Tensor], active: ActiveHeads, n_rows: int, mlps: Sequence[Tensor] | None = None
) -> list[Edit]:
    """Set z, and outputs of MLPs, to their means everywhere except at the active heads and MLPs."""
    edits = []
    for layer, mean in enumerate(mlps or ()):
        where = torch.ones(n_rows, mean.shape[-2], dtype=torch.bool)  # (row, token)
        of_layer = (active.layers == layer) & (active.heads == MLP)
        where[active.rows[of_layer], active.positions[of_layer]] = False
        edits.append(Edit("mlp_out", mean[None], at=range(mean.shape[-2]), layer=layer, where=where))
    for layer, mean in enumerate(means):
        if mean.ndim < 3:
            continue  # no heads
        n_heads, n_tokens, _ = mean.shape
        where = torch.ones(n_rows, n_heads, n_tokens, dtype=torch.bool)  # (row, head, token)
        of_layer = (active.layers == layer) & (active.heads != MLP)
        where[active.rows[of_layer], active.heads[of_layer], active.positions[of_layer]] = False
        edits.append(Edit("z", mean[None], at=range(n_tokens), head=in_layer(layer, range(n_heads)), where=where))
    return edits


def measure_ablation(bench: Workbench, request: Ablation) -> Evidence:
    prompts, ids = bench.prompts.encode(request.prompts).prompts, request.prompts.ids
    answers, means = bench.prompts.answers(prompts, request.answers), means_by_layer(bench, request.means)
    circuits = {CircuitVariant("circuit"): Circuit(request.circuit)} | _comparisons(bench, request)
    named = {str(number): circuit for number, circuit in enumerate(circuits.values())}
    mean_set = request.means.prompts.design
    of_circuits = evaluate(bench.surgeon, prompts, answers, ids, named, means, mean_set=mean_set)
    full = full_model(bench.surgeon, prompts, answers, ids)
    return by_variant(request.KIND, list(circuits), full, of_circuits)


def by_variant(kind: Kind, variants: Sequence[CircuitVariant], full: Evidence, of_circuits: Evidence) -> Evidence:
    """Combine the rows of the full model and of circuits named by their number; `VARIANT` columns replace the name."""
    columns = {str(number): variant for number, variant in enumerate(variants)} | {"full model": CircuitVariant("full")}
    rows = pd.concat([full.rows, of_circuits.rows], ignore_index=True)
    labels = pd.DataFrame([columns[name] for name in rows["circuit"]], columns=list(VARIANT))
    return kind.evidence(
        labels.join(rows[[name for name in kind.columns if name not in VARIANT]]), of_circuits.settings
    )


def _comparisons(bench: Workbench, request: Ablation) -> dict[CircuitVariant, Circuit]:
    """The circuits that an ablation compares with the circuit under test."""
    circuit = Circuit(request.circuit)
    if request.comparison == "heads":
        return {
            CircuitVariant("less", head.group, head.layer, head.head): circuit.without([head]) for head in circuit.heads
        }
    heads, draws = bench.surgeon.anatomy.heads, request.draws
    random_circuits = draw_circuits(circuit, heads, draws=draws, match=request.match)
    random = {CircuitVariant("random", draw=number): variant for number, variant in enumerate(random_circuits)}
    if request.unpruned:
        larger = draw_sizes(dict(request.unpruned), heads, draws=draws)
        random |= {CircuitVariant("random", UNPRUNED, draw=number): variant for number, variant in enumerate(larger)}
    if request.comparison == "random":
        return random
    return {CircuitVariant("less", name): circuit.without(heads) for name, heads in circuit.groups.items()} | random


def measure_means(bench: Workbench, request: Means) -> dict[str, Tensor]:
    prompts = bench.prompts.encode(request.prompts).prompts
    return {str(layer): mean for layer, mean in enumerate(mean_z(bench.surgeon, prompts))}


def means_by_layer(bench: Workbench, request: Means) -> list[Tensor]:
    """Mean z by layer: (head, token, head_dim)."""
    means = bench.tensors(request)
    return [means[str(layer)] for layer in range(len(means))]
