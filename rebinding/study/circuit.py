"""What section 4.1 asks: which heads are found, how they are linked, what is left of the task without the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import pandas as pd
import torch

from rebinding.evidence import Evidence
from rebinding.experiments.circuit.ablation import evaluate, full_model, mean_z, measurer
from rebinding.experiments.circuit.discovery import Discovery, discover
from rebinding.experiments.circuit.paths import PAPER, PAPER_LITERAL, Head, PathSettings, Scene, Stage, score_stage
from rebinding.experiments.circuit.pruning import Score, over_orders
from rebinding.experiments.circuit.random_circuits import draw_circuits
from rebinding.paper.circuit import Circuit, CircuitHead, Owner
from rebinding.paper.rows.circuit import ORDERS
from rebinding.study.bench import DISCOVERY, EVALUATION, MEANS, PRUNING, Bench
from rebinding.subjects import Subject
from rebinding.world.designs import Design, DesignName
from rebinding.world.prompts import Encoded

FOUND_ON: DesignName = "partner_second"
NOISE = "independent"
PROMPTS_OF_MEANS = {"published": 100, "partner_second": 100, "counterbalanced": 108}
"""As published; three whole blocks of the counterbalanced design."""
DRAWS = 10
STAGES: dict[str, Stage] = {stage.group: stage for stage in PAPER} | {"D literal": PAPER_LITERAL[3]}
FULL = "full model"
Beside: TypeAlias = Literal["groups", "heads", "random"]


def owner_of(subject: Subject) -> Owner:
    """The model as a circuit file names it."""
    return Owner(subject.name, subject.fingerprint, subject.anatomy.n_layers, subject.anatomy.n_heads)


def scene(bench: Bench, n: int) -> Scene:
    """Clean and noise prompts for path patching, with their answers."""
    drawn = bench.design(FOUND_ON)
    pairs = [drawn.noise(number, "independent") for number in range(DISCOVERY, DISCOVERY + n)]
    clean = bench.encoder.encode(pair.original for pair in pairs)
    noise = bench.encoder.encode(pair.counterfactual for pair in pairs)
    labels = torch.tensor([bench.encoder.answer_token(pair.original.answer) for pair in pairs])
    return Scene(tuple(pair.id for pair in pairs), tuple(clean), tuple(noise), labels)


def discovered(bench: Bench, where: Scene) -> Discovery:
    """The circuit that path patching finds."""
    about = {"design": FOUND_ON, "noise": NOISE}
    return discover(bench.surgeon, where, PAPER, described=about, shelf=bench.shelf)


def link(bench: Bench, where: Scene, stage: str, receivers: Sequence[Head]) -> Evidence:
    """Every head as a sender to the given receivers."""
    return score_stage(bench.surgeon, where, STAGES[stage], receivers, settings=PathSettings(), shelf=bench.shelf)


def ability(bench: Bench, drawn: Design, n: int) -> Evidence:
    """The unedited model on evaluation prompts."""
    settings = {**_told(drawn), "n": n}

    def compute() -> Evidence:
        ids, prompts = bench.prompts(drawn, EVALUATION, n)
        return full_model(bench.surgeon, prompts, bench.answers(prompts), ids)

    return bench.kept("ability", __name__, settings, compute)


def ablated(bench: Bench, circuit: Circuit, drawn: Design, mean_set: DesignName, *, n: int, beside: Beside) -> Evidence:
    """The full model and the circuit; beside them random circuits, with the circuit less one group each or without, or
    the circuit less one head each."""
    settings = {**_told(drawn), "mean_set": mean_set, "n": n, "beside": beside, "circuit": _listed(circuit)}

    def compute() -> Evidence:
        roles = sorted({head.role for head in circuit.heads})
        ids, prompts = bench.prompts(drawn, EVALUATION, n, roles)
        answers = bench.answers(prompts)
        means = _means(bench, drawn, mean_set)
        circuits = {"circuit": circuit} | _beside(bench, circuit, beside)
        found = evaluate(bench.surgeon, prompts, answers, ids, circuits, means, mean_set=mean_set)
        whole = full_model(bench.surgeon, prompts, answers, ids)
        return Evidence("circuits", pd.concat([whole.rows, found.rows], ignore_index=True), found.settings)

    return bench.kept("circuits", __name__, settings, compute)


def pruned(bench: Bench, circuit: Circuit, drawn: Design, mean_set: DesignName, *, n: int) -> Evidence:
    """The published walk over a circuit, in its own order and in shuffled ones: a row per order and head."""
    settings = {**_told(drawn), "mean_set": mean_set, "n": n, "orders": ORDERS, "circuit": _listed(circuit)}

    def compute() -> Evidence:
        roles = sorted({head.role for head in circuit.heads})
        _, prompts = bench.prompts(drawn, PRUNING, n, roles)
        score = scorer(bench, prompts, _means(bench, drawn, mean_set))
        rows = [
            {**trial.head._asdict(), "order": number, "drop": trial.drop, "removed": trial.removed}
            for number, one in enumerate(over_orders(circuit, score, orders=ORDERS))
            for trial in one.trials
        ]
        return Evidence("pruning", pd.DataFrame(rows), settings)

    return bench.kept("pruning", __name__, settings, compute)


def scorer(bench: Bench, prompts: Sequence[Encoded], means: Sequence[torch.Tensor]) -> Score:
    """The answer's mean logit in a circuit, on prompts that are recorded once."""
    measure = measurer(bench.surgeon, prompts, bench.answers(prompts), means)
    return lambda circuits: measure(circuits)[..., 0].mean(dim=1).tolist()


def left(pruning: Evidence, order: int = 0) -> Circuit:
    """The circuit that one walk leaves."""
    rows = pruning.rows[(pruning.rows["order"] == order) & ~pruning.rows["removed"]]
    listed = zip(rows["group"], rows["layer"], rows["head"], rows["role"], strict=True)
    return Circuit(tuple(CircuitHead(str(g), int(layer), int(head), str(role)) for g, layer, head, role in listed))


def _beside(bench: Bench, circuit: Circuit, which: Beside) -> dict[str, Circuit]:
    if which == "heads":
        return {f"without {_name(head)}": circuit.without([head]) for head in circuit.heads}
    anatomy = bench.surgeon.anatomy
    drawn = draw_circuits(circuit, anatomy.n_layers, anatomy.n_heads, draws=DRAWS)
    random = {f"random {number}": one for number, one in enumerate(drawn)}
    if which == "random":
        return random
    return {f"without {name}": circuit.without(heads) for name, heads in circuit.groups.items()} | random


def _means(bench: Bench, drawn: Design, mean_set: DesignName) -> list[torch.Tensor]:
    """What heads are held at, by layer: the mean of z over prompts of their own, kept for all who ablate."""
    options: dict[str, Any] = {"boxes": drawn.boxes, "operations": drawn.operations, "verb": drawn.verb}
    settings = {"mean_set": mean_set, "prompts": PROMPTS_OF_MEANS[mean_set], **options}

    def compute() -> dict[str, torch.Tensor]:
        _, prompts = bench.prompts(bench.design(mean_set, **options), MEANS, PROMPTS_OF_MEANS[mean_set])
        return {str(layer): mean for layer, mean in enumerate(mean_z(bench.surgeon, prompts))}

    found = bench.activations("means", __name__, settings, compute)
    return [found[str(layer)] for layer in range(len(found))]


def _told(drawn: Design) -> dict[str, Any]:
    return {name: getattr(drawn, name) for name in ("name", "split", "boxes", "operations", "verb", "distractor")}


def _listed(circuit: Circuit) -> list[list[Any]]:
    return [list(head) for head in circuit.heads]


def _name(head: CircuitHead) -> str:
    return f"{head.group}{head.layer}.{head.head}"
