"""Path patching, made up: by how much every sender brings the answer's lead down, prompt by prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from rebinding.experiments.circuit.paths import written
from rebinding.experiments.circuit.request import Paths
from rebinding.paper.circuit import Head
from rebinding.paper.numbers import circuit
from rebinding.power.ability import probability, spread
from rebinding.power.world import Run
from rebinding.study.bench import Bench

Array: TypeAlias = npt.NDArray[np.float64]


def paths(bench: Bench, asked: Paths, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per prompt and sender. Heads of the published group bring the lead down by their share of the circuit's
    logit; all others move it a little, up or down. In the rival's world as many heads that the paper does not name do
    what these do, wherever all heads send."""
    anatomy = bench.subject.anatomy
    every = [(layer, head) for layer in range(anatomy.n_layers) for head in range(anatomy.n_heads)]
    senders, ids = list(asked.senders or every), np.array(asked.prompts.ids)
    fall = _falls(asked, run, senders)
    told = asked.stage.group, asked.stage.component, asked.prompts.tokens, asked.how.frozen
    dice, world = run.dice("paths", *told, len(senders)), run.world
    apart = np.where(fall > 0, world.spreads["effect"] * fall, world.spreads["idle"])  # (head,)
    change = -fall + apart * dice.standard_normal((len(ids), len(senders)))  # (prompt, head)
    lead = world.mean("margin.full") + spread(world, "full") * run.dice("lead", *told).standard_normal(len(ids))
    before = np.repeat(lead, len(senders))
    after = before + change.ravel()
    layer, head = np.tile(np.array(senders), (len(ids), 1)).T
    strata = np.array([written(one.prompt) for one in bench.drawn(asked.prompts).prompts])
    rows = {
        "prompt": np.repeat(ids, len(senders)),
        "stratum": np.repeat(strata, len(senders)),
        "layer": layer,
        "head": head,
        "moved": 1.0,
    }
    for name, value in (("orig", before), ("patch", after)):
        rows |= {f"logit_{name}": value, f"lead_{name}": value, f"p_{name}": probability(value)}
    return pd.DataFrame(rows), {"stage": {"keep": asked.stage.keep}}


def _falls(asked: Paths, run: Run, senders: Sequence[Head]) -> Array:
    """Of every sender, in logits."""
    world, dice = run.world, run.dice("others", asked.stage.group)
    named = {(one.layer, one.head) for one in circuit(world.model) if one.group == asked.stage.group}
    if world.name == "rival":
        others = [one for one in senders if one not in named]
        named = set() if asked.senders else {others[n] for n in dice.choice(len(others), len(named), replace=False)}
    size = world.mean("paths.fall") * world.mean("logit.circuit")
    return np.array([size * (one in named) for one in senders])
