"""Ablation, pruning, contributions and the stream of group E, simulated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from rebinding.experiments.circuit.contributions import contributions, removed_sets
from rebinding.experiments.circuit.request import (
    UNPRUNED,
    VARIANT,
    Ablation,
    CircuitVariant,
    Contributions,
    GroupKnockout,
    Knockout,
    Pruning,
    Stream,
)
from rebinding.experiments.prompts import Prompts
from rebinding.experiments.simulation import leave_out, simulates
from rebinding.experiments.unedited.simulate import draw_answers, margin_spread
from rebinding.paper.circuit import Circuit
from rebinding.paper.numbers import circuit
from rebinding.paper.worlds import Run

LOSS = 10
"""Each head carries a tenth of the circuit's margin, twice the step at which pruning keeps a head."""


@simulates(Ablation)
def simulate_ablation(prompts: Prompts, request: Ablation, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per prompt and circuit; circuits answer the same prompts with the world's correlation."""
    ids, key = np.array(request.prompts.ids), (request.prompts.tokens, request.match, request.means.prompts.design)
    frames = []
    for variant, which, lift in _variants(request, run):
        own = (variant if which == "random" else variant.variant,)
        lift += 0.0 if which == "full" else run.rounding("answers", which, *key, *own)
        values = draw_answers(run, which, len(ids), *key, variant=own, lift=lift)
        frames.append(pd.DataFrame({"prompt": ids, **dict(zip(VARIANT, variant, strict=True)), **values}))
    return pd.concat(frames, ignore_index=True), {}


def _variants(request: Ablation, run: Run) -> Iterator[tuple[CircuitVariant, str, float]]:
    """Each variant, the circuit whose printed numbers it has, and the difference of its margin from these.

    Without a group only chance remains; the paper says so of no group, and the row about it (E') is for models on which
    E is empty.
    """
    yield CircuitVariant("full"), "full", 0.0
    yield CircuitVariant("circuit"), "circuit", 0.0
    if request.comparison == "heads":
        lost = run.world.mean("margin.circuit") / LOSS
        yield from (
            (CircuitVariant("less", head.group, head.layer, head.head), "circuit", -lost) for head in request.circuit
        )
        return
    if request.comparison == "groups":
        groups = dict.fromkeys(head.group for head in request.circuit)
        yield from ((CircuitVariant("less", name), "random", 0.0) for name in groups)
    for size in ("", UNPRUNED) if request.unpruned else ("",):
        luck = run.world.spreads["draw"] * run.dice("draws", request.match, size).standard_normal(request.draws)
        # near the middle of a normal margin a share moves by 0.4 of a standard deviation
        lifts = luck / 0.4 * margin_spread(run.world, "random")
        yield from (
            (CircuitVariant("random", size, draw=number), "random", float(lift)) for number, lift in enumerate(lifts)
        )


@simulates(Pruning)
def simulate_pruning(prompts: Prompts, request: Pruning, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per order and head. A walk keeps the published heads, and errs about some heads by the luck of its order.
    In the rival's world nothing can be pruned, except that E keeps heads if the paper has none."""
    published = {(head.group, head.layer, head.head) for head in circuit(run.world.model)}
    groups = {group for group, _, _ in published}
    if run.world.name == "rival":
        needed = [head.group != "E" or "E" not in groups for head in request.circuit]
    else:
        needed = [(head.group, head.layer, head.head) in published for head in request.circuit]
    dice = run.dice("pruning", request.prompts.tokens, len(request.circuit))
    frames = []
    before, full = (run.world.mean(f"margin.{name}") for name in ("circuit", "full"))
    for order in range(request.orders):
        is_wrong = dice.random(len(needed)) < run.world.spreads["unstable"]
        is_kept = np.array(needed, dtype=bool) ^ is_wrong
        rows = pd.DataFrame([head._asdict() for head in request.circuit])
        frames.append(
            rows.assign(order=order, full_model=full, before=before, drop=is_kept.astype(float), removed=~is_kept)
        )
    return pd.concat(frames, ignore_index=True), {}


@simulates(Stream)
def simulate_stream(prompts: Prompts, request: Stream, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per prompt. Replacing the stream costs its share of the circuit's printed margin."""
    ids, world = np.array(request.prompts.ids), run.world
    before = draw_answers(run, "circuit", len(ids), request.prompts.tokens, "stream")["margin"]
    mean_drop = world.mean("stream") * world.mean("margin.circuit")
    drops = mean_drop + world.around(mean_drop) * run.dice("stream", request.prompts.tokens).standard_normal(len(ids))
    return pd.DataFrame({"prompt": ids, "before": before, "after": before - drops, "relative_change": 1.0}), {}


@simulates(Contributions)
def simulate_contributions(prompts: Prompts, request: Contributions, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per set, head and prompt. A circuit answers with its printed accuracy; each removed head costs a share of
    the right answers, as many as the world says, whichever other heads are removed."""
    full, world = Circuit(request.circuit), run.world
    n, share = len(request.prompts.ids), world.mean("contribution")
    answers = run.dice("contributions", request.prompts.design).random(n) < world.mean("accuracy.circuit")
    losses = {head: run.dice("contributions", *head).random(n) < share for head in full.heads}

    def hits(circuits: Sequence[Circuit]) -> Tensor:
        results = []
        for variant in circuits:
            missing = [losses[head] for head in set(full.heads) - set(variant.heads)]
            results.append(answers & ~np.any(missing, axis=0) if missing else answers)
        return torch.from_numpy(np.stack(results))  # (circuit, prompt)

    removed = removed_sets(full, request.random_sets)
    return contributions(full, hits, removed, request.prompts.ids), {}


@simulates(GroupKnockout)
def simulate_group_knockout(prompts: Prompts, request: GroupKnockout, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per prompt and variant. The group acts in either world, as its gate demands: one that does nothing is no
    rival of any sentence. Without it as much of the margin is lost as the circuit has."""
    ids, world = np.array(request.prompts.ids), run.world
    dice, key = run.dice("idle", request.prompts.tokens), (request.prompts.tokens, "knockout")
    full, lost = draw_answers(run, "full", len(ids), *key)["margin"], abs(world.mean("margin.circuit"))
    changes = {CircuitVariant("full"): 0.0, CircuitVariant("circuit"): lost}
    changes |= {CircuitVariant("random", draw=draw): 0.0 for draw in range(request.draws)}
    share = lost / len(request.circuit)
    changes |= {CircuitVariant("less", head.group, head.layer, head.head): share for head in request.circuit}
    frames = []
    for variant, change in changes.items():
        noise = 0.0 if variant.variant == "full" else world.spreads["idle"] * dice.standard_normal(len(ids))
        margin = full - change + noise
        columns = {"margin": margin, "hit": (margin > 0).astype(float), "label_logit": margin, "probability": 0.0}
        frames.append(pd.DataFrame({"prompt": ids, **dict(zip(VARIANT, variant, strict=True)), **columns}))
    return pd.concat(frames, ignore_index=True).assign(relative_change=1.0), {}


leave_out(Knockout, "ours; no sentence says what the model does without the circuit")
