"""Pruning, made up: which heads of a discovered circuit each walk leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from rebinding.experiments.circuit.request import Pruning
from rebinding.paper.numbers import circuit
from rebinding.power.world import Run
from rebinding.study.bench import Bench


def pruning(bench: Bench, asked: Pruning, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per order and head. A walk leaves the published heads, and errs about a head by the luck of its order. In
    the rival's world nothing can be pruned, but of group E is kept what the paper does not have."""
    published = {(one.group, one.layer, one.head) for one in circuit(run.world.model)}
    groups = {group for group, _, _ in published}
    if run.world.name == "rival":
        wanted = [one.group != "E" or "E" not in groups for one in asked.circuit]
    else:
        wanted = [(one.group, one.layer, one.head) in published for one in asked.circuit]
    dice = run.dice("pruning", asked.prompts.tokens, len(asked.circuit))
    frames = []
    alone, whole = (run.world.mean(f"margin.{name}") for name in ("circuit", "full"))
    for order in range(asked.orders):
        wrong = dice.random(len(wanted)) < run.world.spreads["unstable"]
        kept = np.array(wanted, dtype=bool) ^ wrong
        rows = pd.DataFrame([one._asdict() for one in asked.circuit])
        frames.append(rows.assign(order=order, whole=whole, before=alone, drop=kept.astype(float), removed=~kept))
    return pd.concat(frames, ignore_index=True), {}
