"""Section 4.1, made up: what the circuit, the circuit without some heads, and random ones answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from rebinding.experiments.circuit.kinds import VARIANT
from rebinding.experiments.circuit.request import Ablation
from rebinding.power.ability import answered, spread
from rebinding.power.world import Run
from rebinding.study.bench import Bench
from rebinding.study.circuit import Ablated

LOSS = 10
"""Of the circuit's margin a tenth is lost with any of its heads, twice the step at which pruning keeps one."""


def ablation(bench: Bench, asked: Ablation, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per prompt and circuit; whoever answers, does so on the same prompts independently of the others."""
    ids, told = np.array(asked.prompts.ids), (asked.prompts.tokens, asked.match, asked.means.prompts.design)
    frames = []
    for variant, which, lift in _variants(asked, run):
        values = answered(run, which, len(ids), *told, variant if which == "random" else variant.which, lift=lift)
        frames.append(pd.DataFrame({"prompt": ids, **dict(zip(VARIANT, variant, strict=True)), **values}))
    return pd.concat(frames, ignore_index=True), {}


def _variants(asked: Ablation, run: Run) -> Iterator[tuple[Ablated, str, float]]:
    """A circuit, whose printed numbers are its own, and by how much its margin differs from these.

    Without a group nothing is left but chance; the paper says so of none, and the row that asks (E') is about models
    on which E is empty.
    """
    yield Ablated("full"), "full", 0.0
    yield Ablated("circuit"), "circuit", 0.0
    if asked.beside == "heads":
        lost = run.world.mean("margin.circuit") / LOSS
        yield from ((Ablated("less", one.group, one.layer, one.head), "circuit", -lost) for one in asked.circuit)
        return
    if asked.beside == "groups":
        groups = dict.fromkeys(one.group for one in asked.circuit)
        yield from ((Ablated("less", name), "random", 0.0) for name in groups)
    luck = run.world.spreads["draw"] * run.dice("draws", asked.match).standard_normal(asked.draws)
    # near the middle of a normal margin a share moves by 0.4 of a standard deviation
    lifts = luck / 0.4 * spread(run.world, "random")
    yield from ((Ablated("random", draw=number), "random", float(lift)) for number, lift in enumerate(lifts))
