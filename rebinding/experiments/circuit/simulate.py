"""Ablation, pruning, contributions and the stream of group E, simulated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from rebinding.experiments.circuit.contributions import contributions, sets_beside
from rebinding.experiments.circuit.request import VARIANT, Ablated, Ablation, Contributions, Knockout, Pruning, Stream
from rebinding.experiments.prompts import Prompts
from rebinding.experiments.simulation import leave_out, simulates
from rebinding.experiments.unedited.simulate import answered, spread
from rebinding.paper.circuit import Circuit
from rebinding.paper.numbers import circuit
from rebinding.paper.worlds import Run

LOSS = 10
"""Of the circuit's margin a tenth is lost with any of its heads, twice the step at which pruning keeps one."""


@simulates(Ablation)
def simulate_ablation(prompts: Prompts, request: Ablation, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per prompt and circuit; whoever answers, does so on the same prompts independently of the others."""
    ids, told = np.array(request.prompts.ids), (request.prompts.tokens, request.match, request.means.prompts.design)
    frames = []
    for variant, which, lift in _variants(request, run):
        values = answered(run, which, len(ids), *told, variant if which == "random" else variant.which, lift=lift)
        frames.append(pd.DataFrame({"prompt": ids, **dict(zip(VARIANT, variant, strict=True)), **values}))
    return pd.concat(frames, ignore_index=True), {}


def _variants(request: Ablation, run: Run) -> Iterator[tuple[Ablated, str, float]]:
    """A circuit, whose printed numbers are its own, and by how much its margin differs from these.

    Without a group nothing is left but chance; the paper says so of none, and the row that asks (E') is about models
    on which E is empty.
    """
    yield Ablated("full"), "full", 0.0
    yield Ablated("circuit"), "circuit", 0.0
    if request.beside == "heads":
        lost = run.world.mean("margin.circuit") / LOSS
        yield from ((Ablated("less", one.group, one.layer, one.head), "circuit", -lost) for one in request.circuit)
        return
    if request.beside == "groups":
        groups = dict.fromkeys(one.group for one in request.circuit)
        yield from ((Ablated("less", name), "random", 0.0) for name in groups)
    luck = run.world.spreads["draw"] * run.dice("draws", request.match).standard_normal(request.draws)
    # near the middle of a normal margin a share moves by 0.4 of a standard deviation
    lifts = luck / 0.4 * spread(run.world, "random")
    yield from ((Ablated("random", draw=number), "random", float(lift)) for number, lift in enumerate(lifts))


@simulates(Pruning)
def simulate_pruning(prompts: Prompts, request: Pruning, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per order and head. A walk leaves the published heads, and errs about a head by the luck of its order. In
    the rival's world nothing can be pruned, but of group E is kept what the paper does not have."""
    published = {(one.group, one.layer, one.head) for one in circuit(run.world.model)}
    groups = {group for group, _, _ in published}
    if run.world.name == "rival":
        wanted = [one.group != "E" or "E" not in groups for one in request.circuit]
    else:
        wanted = [(one.group, one.layer, one.head) in published for one in request.circuit]
    dice = run.dice("pruning", request.prompts.tokens, len(request.circuit))
    frames = []
    alone, whole = (run.world.mean(f"margin.{name}") for name in ("circuit", "full"))
    for order in range(request.orders):
        wrong = dice.random(len(wanted)) < run.world.spreads["unstable"]
        kept = np.array(wanted, dtype=bool) ^ wrong
        rows = pd.DataFrame([one._asdict() for one in request.circuit])
        frames.append(rows.assign(order=order, whole=whole, before=alone, drop=kept.astype(float), removed=~kept))
    return pd.concat(frames, ignore_index=True), {}


@simulates(Stream)
def simulate_stream(prompts: Prompts, request: Stream, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per prompt. The stream takes its share of the circuit's printed margin with it."""
    ids, world = np.array(request.prompts.ids), run.world
    before = answered(run, "circuit", len(ids), request.prompts.tokens, "stream")["margin"]
    fall = world.mean("stream") * world.mean("margin.circuit")
    falls = fall + world.around(fall) * run.dice("stream", request.prompts.tokens).standard_normal(len(ids))
    return pd.DataFrame({"prompt": ids, "before": before, "after": before - falls, "moved": 1.0}), {}


@simulates(Contributions)
def simulate_contributions(prompts: Prompts, request: Contributions, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per set, head and prompt. A circuit answers with its printed accuracy; of its heads each one that is gone
    takes a share of the right answers with it, as many as the world says, whichever others are gone."""
    whole, world = Circuit(request.circuit), run.world
    n, lost = len(request.prompts.ids), world.mean("contribution")
    answers = run.dice("contributions", request.prompts.design).random(n) < world.mean("accuracy.circuit")
    falls = {head: run.dice("contributions", *head).random(n) < lost for head in whole.heads}

    def hits(circuits: Sequence[Circuit]) -> Tensor:
        found = []
        for one in circuits:
            gone = [falls[head] for head in set(whole.heads) - set(one.heads)]
            found.append(answers & ~np.any(gone, axis=0) if gone else answers)
        return torch.from_numpy(np.stack(found))  # (circuit, prompt)

    gone = sets_beside(whole, request.random_sets)
    return contributions(whole, hits, gone, request.prompts.ids), {}


leave_out(Knockout, "ours; no sentence says what the model does without the circuit")
