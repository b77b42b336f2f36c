"""What section 4.1 asks: which heads are found, how they are linked, what is left of the task without the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence, Kind, PromptSet
from rebinding.experiments.circuit.ablation import evaluate, full_model, mean_z, measurer
from rebinding.experiments.circuit.discovery import Discovery, discover_by, scores
from rebinding.experiments.circuit.kinds import MEASURES, VARIANT, Which
from rebinding.experiments.circuit.paths import PAPER, PAPER_LITERAL, NoisePairs, PathSettings, Stage, score_stage
from rebinding.experiments.circuit.pruning import Score, over_orders
from rebinding.experiments.circuit.random_circuits import Match, draw_circuits
from rebinding.experiments.circuit.request import (
    Ability,
    Ablation,
    Beside,
    Means,
    Paths,
    Pruning,
)
from rebinding.paper.circuit import Circuit, Head, Owner
from rebinding.paper.procedure import CircuitWay, ProcedureName
from rebinding.study.bench import BALANCED, DISCOVERY, MEANS, PRUNING, Bench, averages, measures
from rebinding.study.drawing import Drawn
from rebinding.subjects import Subject
from rebinding.world.answers import AnswerSet
from rebinding.world.designs import Design, DesignName
from rebinding.world.prompts import Encoder

PROMPTS_OF_MEANS = {"published": 100, "partner_second": 100, "counterbalanced": 108}
"""As published; three whole blocks of the counterbalanced design."""
DRAWS = 10
ORDERS = 8
"""Walks of pruning, in the published order and in shuffled ones."""
STAGES: dict[str, Stage] = {stage.group: stage for stage in PAPER} | {"D literal": PAPER_LITERAL[3]}
STAGES_BY = {"keys_values": PAPER, "query": PAPER_LITERAL}
"""The five stages, by what of C hears D."""
Ask: TypeAlias = Callable[[Paths], Evidence]


class Ablated(NamedTuple):
    """Which circuit a row of an ablation is of; the columns of `VARIANT`."""

    which: Which
    group: str = ""
    layer: int = -1
    head: int = -1
    draw: int = -1


def owner_of(subject: Subject) -> Owner:
    """The model as a circuit file names it."""
    return Owner(subject.name, subject.fingerprint, subject.anatomy.n_layers, subject.anatomy.n_heads)


def ability(bench: Bench, drawn: Design, n: int, cut: int = 0) -> Ability:
    """The unedited model on evaluation prompts. In prompts that are short of their end no "Answer:" stands before the
    answer, and a word counts in either form."""
    return Ability(bench.draw(drawn, bench.range_of(n), cut=cut), "exp2_aliases" if cut else "continuation")


@measures(Ability)
def measure_ability(bench: Bench, asked: Ability) -> Evidence:
    prompts = bench.drawn(asked.prompts).prompts
    found = full_model(bench.surgeon, prompts, bench.answers(prompts, asked.answers), asked.prompts.ids)
    return Evidence(asked.KIND.name, found.rows.drop(columns="circuit"), found.settings)


# path patching


def of_a_plant(way: CircuitWay, procedure: ProcedureName, means: DesignName = "counterbalanced") -> CircuitWay:
    """The conventions of a paper about a planted model. Its D sits at the second label of a swap, and its means mostly
    know no slot; and a stage that keeps 50 heads keeps most of what a plant has, so it keeps those that count."""
    if procedure == "controlled":
        return replace(way, design="partner_second")
    return replace(
        way,
        design="partner_second",
        noise=("independent",),
        frozen=("all",),
        d_heard_by=("keys_values",),
        scope="head",
        select="negative",
        means=means,
    )


def noise_pairs(bench: Bench, way: CircuitWay, n: int, first: int | None = None) -> PromptSet:
    """Clean and noise prompts for path patching: those of discovery, or others from id `first` on."""
    drawn, (kind, *_) = bench.design(way.design), way.noise
    if way.design != "counterbalanced":
        start = DISCOVERY if first is None else first
        return bench.draw(drawn, range(start, start + n), ("noise", kind))
    roles = [role for stage in PAPER for role in (stage.sender, stage.at) if role is not None]
    return bench.draw_with(drawn, BALANCED if first is None else first, n, roles, ("noise", kind))


def link(
    pairs: PromptSet,
    stage: Stage,
    receivers: Sequence[Head],
    way: CircuitWay,
    senders: Sequence[Head] | None = None,
) -> Paths:
    """Heads as senders to the given receivers, in the first of the ways that it may have been done."""
    sending = None if senders is None else tuple(sorted(senders))
    return Paths(pairs, stage, tuple(sorted(receivers)), PathSettings(way.frozen[0], way.scope), sending)


def discovered(pairs: PromptSet, way: CircuitWay, ask: Ask) -> Discovery:
    """The circuit that path patching finds, each stage asked for as evidence of its own."""
    about = {"design": pairs.design, "noise": pairs.pairing[-1], "prompts": len(pairs.ids)}
    return discover_by(
        lambda stage, heads: ask(link(pairs, stage, heads, way)),
        STAGES_BY[way.d_heard_by[0]],
        scale=way.score,
        rule=way.select,
        described=about,
    )


def weakest(found: Discovery) -> float | None:
    """The least fall of the answer's lead, in logits, for which a head was kept; none, where no head was."""
    falls = []
    for group, evidence in found.evidence.items():
        table = scores(evidence, "logit").set_index(["layer", "head"])["score"]
        falls += [-float(table.loc[head]) for head in found.circuit.group(group)]
    return min(falls, default=None)


@measures(Paths, in_blocks=lambda asked: asked.how.block)
def measure_paths(bench: Bench, asked: Paths) -> Evidence:
    where = _kept_pairs(bench, asked.prompts)
    return score_stage(
        bench.surgeon,
        where,
        asked.stage,
        asked.receivers,
        senders=asked.senders,
        settings=asked.how,
        shelf=bench.shelf,
    )


def _kept_pairs(bench: Bench, pairs: PromptSet) -> NoisePairs:
    """Kept from stage to stage, because they remember their recordings."""
    if pairs not in bench.noise_pairs:
        bench.noise_pairs[pairs] = with_labels(bench.encoder, bench.drawn(pairs))
    return bench.noise_pairs[pairs]


def with_labels(encoder: Encoder, drawn: Drawn) -> NoisePairs:
    """Drawn clean and noise prompts, with the answers of the clean ones and the other objects of their stories."""
    prompts = [one.prompt for one in drawn.prompts]
    labels = torch.tensor([encoder.answer_token(one.answer) for one in prompts])
    others = [[word for word in one.story.state().values() if word not in (None, one.answer)] for one in prompts]
    rivals = torch.tensor([[encoder.answer_token(str(word)) for word in words] for words in others])
    return NoisePairs(drawn.asked.ids, drawn.prompts, drawn.others, labels, rivals)


# ablation


def ablated(
    bench: Bench,
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
    prompts = bench.draw_with(drawn, bench.evaluation, n, roles_of(circuit))
    return Ablation(prompts, means_of(bench, drawn, mean_set), circuit.heads, beside, DRAWS, match, answers)


@measures(Ablation)
def measure_ablation(bench: Bench, asked: Ablation) -> Evidence:
    prompts, ids = bench.drawn(asked.prompts).prompts, asked.prompts.ids
    answers, means = bench.answers(prompts, asked.answers), listed(bench, asked.means)
    circuits = {Ablated("circuit"): Circuit(asked.circuit)} | _beside(bench, asked)
    named = {str(number): circuit for number, circuit in enumerate(circuits.values())}
    mean_set = asked.means.prompts.design
    found = evaluate(bench.surgeon, prompts, answers, ids, named, means, mean_set=mean_set)
    whole = full_model(bench.surgeon, prompts, answers, ids)
    return by_variant(asked.KIND, list(circuits), whole, found)


def by_variant(kind: Kind, variants: Sequence[Ablated], whole: Evidence, found: Evidence) -> Evidence:
    """The whole model and circuits that go by their numbers, as rows that say which circuit each is of."""
    columns = {str(number): variant for number, variant in enumerate(variants)} | {"full model": Ablated("full")}
    rows = pd.concat([whole.rows, found.rows], ignore_index=True)
    told = pd.DataFrame([columns[name] for name in rows["circuit"]], columns=list(VARIANT))
    return kind.evidence(told.join(rows[[name for name in kind.columns if name not in VARIANT]]), found.settings)


def _beside(bench: Bench, asked: Ablation) -> dict[Ablated, Circuit]:
    circuit = Circuit(asked.circuit)
    if asked.beside == "heads":
        return {Ablated("less", one.group, one.layer, one.head): circuit.without([one]) for one in circuit.heads}
    anatomy = bench.surgeon.anatomy
    drawn = draw_circuits(circuit, anatomy.n_layers, anatomy.n_heads, draws=asked.draws, match=asked.match)
    random = {Ablated("random", draw=number): one for number, one in enumerate(drawn)}
    if asked.beside == "random":
        return random
    return {Ablated("less", name): circuit.without(heads) for name, heads in circuit.groups.items()} | random


def means_of(bench: Bench, drawn: Design, mean_set: DesignName) -> Means:
    """What heads are held at: the mean of z over prompts of their own."""
    options: dict[str, Any] = {"boxes": drawn.boxes, "operations": drawn.operations, "verb": drawn.verb}
    options["narrative"] = drawn.narrative
    ids = range(MEANS, MEANS + PROMPTS_OF_MEANS[mean_set])
    return Means(bench.draw(bench.design(mean_set, **options), ids))


@averages(Means)
def measure_means(bench: Bench, asked: Means) -> dict[str, Tensor]:
    prompts = bench.drawn(asked.prompts).prompts
    return {str(layer): mean for layer, mean in enumerate(mean_z(bench.surgeon, prompts))}


def listed(bench: Bench, asked: Means) -> list[Tensor]:
    found = bench.averaged(asked)
    return [found[str(layer)] for layer in range(len(found))]


# pruning


def pruned(bench: Bench, circuit: Circuit, way: CircuitWay, *, n: int) -> Pruning:
    """The published walk over a circuit, in its own order and in shuffled ones, on prompts like those of discovery."""
    drawn = bench.design(way.design)
    prompts = bench.draw_with(drawn, PRUNING, n, roles_of(circuit))
    means = means_of(bench, drawn, way.means)
    return Pruning(prompts, means, circuit.heads, ORDERS, way.prune_by, way.prune_step, way.answers)


@measures(Pruning)
def measure_pruning(bench: Bench, asked: Pruning) -> Evidence:
    """A row per order and head."""
    score, prompts = scorer(bench, asked), bench.drawn(asked.prompts).prompts
    answers = bench.answers(prompts, asked.answers)
    whole = full_model(bench.surgeon, prompts, answers, asked.prompts.ids).rows[asked.by].mean()
    walks = over_orders(Circuit(asked.circuit), score, orders=asked.orders, threshold=asked.step)
    rows = [
        {**trial.head._asdict(), "order": number, "whole": whole, **trial.told}
        for number, one in enumerate(walks)
        for trial in one.trials
    ]
    return Evidence(asked.KIND.name, pd.DataFrame(rows), {})


def scorer(bench: Bench, asked: Pruning) -> Score:
    """The answer's mean logit (or margin) in a circuit, on prompts that are recorded once."""
    encoded = bench.drawn(asked.prompts).prompts
    measure = measurer(bench.surgeon, encoded, bench.answers(encoded, asked.answers), listed(bench, asked.means))
    column = MEASURES.index(asked.by)
    return lambda circuits: measure(circuits)[..., column].mean(dim=1).tolist()


def roles_of(circuit: Circuit) -> list[str]:
    """The tokens at which a circuit acts."""
    return sorted({head.role for head in circuit.heads})
