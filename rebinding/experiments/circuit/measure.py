"""Measure the requests about a circuit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pandas as pd
from torch import Tensor

from rebinding.evidence import Evidence, Kind
from rebinding.experiments.answers import MEASURES, full_model
from rebinding.experiments.circuit.ablation import evaluate, mean_z, measurer
from rebinding.experiments.circuit.contributions import Hits, contributions, removed_sets
from rebinding.experiments.circuit.knockout import knock_out
from rebinding.experiments.circuit.pruning import Score, in_orders, walk
from rebinding.experiments.circuit.random_circuits import draw_circuits, draw_sizes
from rebinding.experiments.circuit.request import (
    UNPRUNED,
    VARIANT,
    Ablation,
    CircuitVariant,
    Contributions,
    GroupKnockout,
    Knockout,
    Means,
    Pruning,
    Stream,
)
from rebinding.experiments.circuit.stream import exchange_stream
from rebinding.experiments.tokens import blocks, prompt_blocks
from rebinding.experiments.workbench import Workbench, averages, measures
from rebinding.paper.circuit import Circuit

HIT = MEASURES.index("hit")


@measures(Ablation)
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


@averages(Means)
def measure_means(bench: Workbench, request: Means) -> dict[str, Tensor]:
    prompts = bench.prompts.encode(request.prompts).prompts
    return {str(layer): mean for layer, mean in enumerate(mean_z(bench.surgeon, prompts))}


def means_by_layer(bench: Workbench, request: Means) -> list[Tensor]:
    """Mean z by layer: (head, token, head_dim)."""
    means = bench.tensors(request)
    return [means[str(layer)] for layer in range(len(means))]


@measures(Pruning)
def measure_pruning(bench: Workbench, request: Pruning) -> Evidence:
    """A row per order and head; every order has its own prompts, an equal part of all. As many orders walk in parallel
    as the surgeon takes prompts at once."""
    prompts, ids = bench.prompts.encode(request.prompts).prompts, request.prompts.ids
    means, n = means_by_layer(bench, request.means), len(ids) // request.orders
    circuits, rows = in_orders(Circuit(request.circuit), request.orders), []
    for part in blocks(len(circuits), max(1, bench.surgeon.prompts_at_once(len(prompts[0])) // n)):
        where = slice(part.start * n, part.stop * n)
        answers = bench.prompts.answers(prompts[where], request.answers)
        score = mean_of(measurer(bench.surgeon, prompts[where], answers, means, apart=True), request.by)
        full = full_model(bench.surgeon, prompts[where], answers, ids[where]).rows.sort_values("prompt")[request.by]
        for number, walked in enumerate(walk(circuits[part], score, threshold=request.step)):
            full_model_score = full[number * n : (number + 1) * n].mean()
            columns = {"order": part.start + number, "full_model": full_model_score}
            rows += [{**trial.head._asdict(), **columns, **trial.columns} for trial in walked.trials]
    return Evidence(request.KIND.name, pd.DataFrame(rows), {})


def mean_of(measure: Callable[[Sequence[Circuit]], Tensor], by: str) -> Score:
    """A function that gives the mean of one measure over prompts, out of one that gives all measures."""
    return lambda circuits: measure(circuits)[..., MEASURES.index(by)].mean(dim=1).tolist()


@measures(Contributions)
def measure_contributions(bench: Workbench, request: Contributions) -> Evidence:
    """Measure block by block, so that only the recordings of one block are in memory."""
    prompts, circuit, means = (
        bench.prompts.encode(request.prompts).prompts,
        Circuit(request.circuit),
        means_by_layer(bench, request.means),
    )
    removed, frames = removed_sets(circuit, request.random_sets), []
    for where in prompt_blocks(bench.surgeon, prompts):
        measure = measurer(bench.surgeon, prompts[where], bench.prompts.answers(prompts[where], request.answers), means)
        frames.append(contributions(circuit, _hits(measure), removed, request.prompts.ids[where]))
    return request.KIND.evidence(pd.concat(frames, ignore_index=True), {})


def _hits(measure: Callable[[Sequence[Circuit]], Tensor]) -> Hits:
    """A function that gives the hits of circuits, out of one that gives all measures."""
    return lambda circuits: measure(circuits)[..., HIT]  # (circuit, prompt)


@measures(GroupKnockout)
@measures(Knockout)
def measure_knockout(bench: Workbench, request: Knockout) -> Evidence:
    prompts, ids, circuit = bench.prompts.encode(request.prompts).prompts, request.prompts.ids, Circuit(request.circuit)
    answers, group = bench.prompts.answers(prompts), request if isinstance(request, GroupKnockout) else None
    free = [head for head in bench.surgeon.anatomy.heads if group is None or head not in group.spared]
    random_circuits = draw_circuits(circuit, free, draws=request.draws, match="role_and_layer", exclude=True)
    removed = {CircuitVariant("circuit"): circuit}
    removed |= {CircuitVariant("random", draw=number): drawn for number, drawn in enumerate(random_circuits)}
    if group is not None:
        removed |= {
            CircuitVariant("less", head.group, head.layer, head.head): Circuit((head,)) for head in circuit.heads
        }
    variants, named = list(removed), {str(number): heads for number, heads in enumerate(removed.values())}
    of_circuits = knock_out(bench.surgeon, prompts, answers, ids, named, means_by_layer(bench, request.means))
    full = full_model(bench.surgeon, prompts, answers, ids)
    return by_variant(request.KIND, variants, replace(full, rows=full.rows.assign(relative_change=0.0)), of_circuits)


@measures(Stream)
def measure_stream(bench: Workbench, request: Stream) -> Evidence:
    pairs, means = bench.prompts.encode(request.prompts), means_by_layer(bench, request.means)
    answers, circuit = bench.prompts.answers(pairs.prompts, request.answers), Circuit(request.circuit)
    return exchange_stream(
        bench.surgeon,
        pairs.prompts,
        pairs.counterfactuals,
        answers,
        request.prompts.ids,
        circuit,
        means,
        role=request.role,
        layers=request.layers,
    )
