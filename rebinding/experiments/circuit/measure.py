"""Measure what is requested of a circuit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pandas as pd
from torch import Tensor

from rebinding.evidence import Evidence, Kind
from rebinding.experiments.answers import MEASURES, full_model
from rebinding.experiments.circuit.ablation import evaluate, mean_z, measurer
from rebinding.experiments.circuit.contributions import Hits, contributions, sets_beside
from rebinding.experiments.circuit.knockout import knock_out
from rebinding.experiments.circuit.pruning import Score, over_orders
from rebinding.experiments.circuit.random_circuits import draw_circuits
from rebinding.experiments.circuit.request import (
    VARIANT,
    Ablated,
    Ablation,
    Contributions,
    Knockout,
    Means,
    Pruning,
    Stream,
)
from rebinding.experiments.circuit.stream import exchange_stream
from rebinding.experiments.tokens import BLOCK, blocks
from rebinding.experiments.workbench import Workbench, averages, measures
from rebinding.paper.circuit import Circuit

HIT = MEASURES.index("hit")


@measures(Ablation)
def measure_ablation(bench: Workbench, request: Ablation) -> Evidence:
    prompts, ids = bench.prompts.drawn(request.prompts).prompts, request.prompts.ids
    answers, means = bench.prompts.answers(prompts, request.answers), means_by_layer(bench, request.means)
    circuits = {Ablated("circuit"): Circuit(request.circuit)} | _beside(bench, request)
    named = {str(number): circuit for number, circuit in enumerate(circuits.values())}
    mean_set = request.means.prompts.design
    found = evaluate(bench.surgeon, prompts, answers, ids, named, means, mean_set=mean_set)
    whole = full_model(bench.surgeon, prompts, answers, ids)
    return by_variant(request.KIND, list(circuits), whole, found)


def by_variant(kind: Kind, variants: Sequence[Ablated], whole: Evidence, found: Evidence) -> Evidence:
    """The whole model and circuits that go by their numbers, as rows that say which circuit each is of."""
    columns = {str(number): variant for number, variant in enumerate(variants)} | {"full model": Ablated("full")}
    rows = pd.concat([whole.rows, found.rows], ignore_index=True)
    told = pd.DataFrame([columns[name] for name in rows["circuit"]], columns=list(VARIANT))
    return kind.evidence(told.join(rows[[name for name in kind.columns if name not in VARIANT]]), found.settings)


def _beside(bench: Workbench, request: Ablation) -> dict[Ablated, Circuit]:
    circuit = Circuit(request.circuit)
    if request.beside == "heads":
        return {Ablated("less", one.group, one.layer, one.head): circuit.without([one]) for one in circuit.heads}
    anatomy = bench.surgeon.anatomy
    drawn = draw_circuits(circuit, anatomy.n_layers, anatomy.n_heads, draws=request.draws, match=request.match)
    random = {Ablated("random", draw=number): one for number, one in enumerate(drawn)}
    if request.beside == "random":
        return random
    return {Ablated("less", name): circuit.without(heads) for name, heads in circuit.groups.items()} | random


@averages(Means)
def measure_means(bench: Workbench, request: Means) -> dict[str, Tensor]:
    prompts = bench.prompts.drawn(request.prompts).prompts
    return {str(layer): mean for layer, mean in enumerate(mean_z(bench.surgeon, prompts))}


def means_by_layer(bench: Workbench, request: Means) -> list[Tensor]:
    found = bench.tensors(request)
    return [found[str(layer)] for layer in range(len(found))]


@measures(Pruning)
def measure_pruning(bench: Workbench, request: Pruning) -> Evidence:
    """A row per order and head."""
    score, prompts = scorer(bench, request), bench.prompts.drawn(request.prompts).prompts
    answers = bench.prompts.answers(prompts, request.answers)
    whole = full_model(bench.surgeon, prompts, answers, request.prompts.ids).rows[request.by].mean()
    walks = over_orders(Circuit(request.circuit), score, orders=request.orders, threshold=request.step)
    rows = [
        {**trial.head._asdict(), "order": number, "whole": whole, **trial.told}
        for number, one in enumerate(walks)
        for trial in one.trials
    ]
    return Evidence(request.KIND.name, pd.DataFrame(rows), {})


def scorer(bench: Workbench, request: Pruning) -> Score:
    """The answer's mean logit (or margin) in a circuit, on prompts that are recorded once."""
    encoded = bench.prompts.drawn(request.prompts).prompts
    answers = bench.prompts.answers(encoded, request.answers)
    measure = measurer(bench.surgeon, encoded, answers, means_by_layer(bench, request.means))
    column = MEASURES.index(request.by)
    return lambda circuits: measure(circuits)[..., column].mean(dim=1).tolist()


@measures(Contributions)
def measure_contributions(bench: Workbench, request: Contributions) -> Evidence:
    """Block by block, so that a run of many prompts holds the recordings of a few."""
    prompts, circuit, means = (
        bench.prompts.drawn(request.prompts).prompts,
        Circuit(request.circuit),
        means_by_layer(bench, request.means),
    )
    gone, frames = sets_beside(circuit, request.random_sets), []
    for where in blocks(len(prompts), BLOCK):
        run = measurer(bench.surgeon, prompts[where], bench.prompts.answers(prompts[where], request.answers), means)
        frames.append(contributions(circuit, _hits(run), gone, request.prompts.ids[where]))
    return request.KIND.evidence(pd.concat(frames, ignore_index=True), {})


def _hits(run: Callable[[Sequence[Circuit]], Tensor]) -> Hits:
    """Of all measures, whether the answer is right."""
    return lambda circuits: run(circuits)[..., HIT]  # (circuit, prompt)


@measures(Knockout)
def measure_knockout(bench: Workbench, request: Knockout) -> Evidence:
    prompts, ids, circuit = bench.prompts.drawn(request.prompts).prompts, request.prompts.ids, Circuit(request.circuit)
    answers, anatomy = bench.prompts.answers(prompts), bench.surgeon.anatomy
    drawn = draw_circuits(
        circuit, anatomy.n_layers, anatomy.n_heads, draws=request.draws, match="role_and_layer", exclude=True
    )
    variants = [Ablated("circuit"), *(Ablated("random", draw=number) for number in range(request.draws))]
    named = {str(number): one for number, one in enumerate((circuit, *drawn))}
    found = knock_out(bench.surgeon, prompts, answers, ids, named, means_by_layer(bench, request.means))
    whole = full_model(bench.surgeon, prompts, answers, ids)
    return by_variant(request.KIND, variants, replace(whole, rows=whole.rows.assign(moved=0.0)), found)


@measures(Stream)
def measure_stream(bench: Workbench, request: Stream) -> Evidence:
    drawn, means = bench.prompts.drawn(request.prompts), means_by_layer(bench, request.means)
    answers, circuit = bench.prompts.answers(drawn.prompts, request.answers), Circuit(request.circuit)
    return exchange_stream(
        bench.surgeon,
        drawn.prompts,
        drawn.others,
        answers,
        request.prompts.ids,
        circuit,
        means,
        role=request.role,
        layers=request.layers,
    )
