"""Path patching, simulated: by how much every sender brings the answer's lead down, prompt by prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from rebinding.experiments.paths.request import Paths, written
from rebinding.experiments.prompts import Prompts
from rebinding.experiments.simulation import simulates
from rebinding.experiments.unedited.simulate import probability, spread
from rebinding.paper.circuit import Head
from rebinding.paper.numbers import checkpoint, circuit
from rebinding.paper.worlds import Run

Array: TypeAlias = npt.NDArray[np.float64]


@simulates(Paths)
def simulate_paths(prompts: Prompts, request: Paths, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per prompt and sender. Heads of the published group bring the lead down by their share of the circuit's
    logit; all others move it a little, up or down. In the rival's world as many heads that the paper does not name do
    what these do, wherever all heads send."""
    shape = checkpoint(run.world.model)
    every = [(layer, head) for layer in range(shape.layers) for head in range(shape.heads)]
    senders, ids = list(request.senders or every), np.array(request.prompts.ids)
    fall = _falls(request, run, senders)
    told = request.stage.group, request.stage.component, request.prompts.tokens, request.how.frozen
    dice, world = run.dice("paths", *told, len(senders)), run.world
    apart = np.where(fall > 0, world.spreads["effect"] * fall, world.spreads["idle"])  # (head,)
    change = -fall + apart * dice.standard_normal((len(ids), len(senders)))  # (prompt, head)
    lead = world.mean("margin.full") + spread(world, "full") * run.dice("lead", *told).standard_normal(len(ids))
    before = np.repeat(lead, len(senders))
    after = before + change.ravel()
    layer, head = np.tile(np.array(senders), (len(ids), 1)).T
    strata = np.array([written(one.prompt) for one in prompts.drawn(request.prompts).prompts])
    rows = {
        "prompt": np.repeat(ids, len(senders)),
        "stratum": np.repeat(strata, len(senders)),
        "layer": layer,
        "head": head,
        "moved": 1.0,
    }
    for name, value in (("orig", before), ("patch", after)):
        rows |= {f"logit_{name}": value, f"lead_{name}": value, f"p_{name}": probability(value)}
    return pd.DataFrame(rows), {"stage": {"keep": request.stage.keep}}


def _falls(request: Paths, run: Run, senders: Sequence[Head]) -> Array:
    """Of every sender, in logits."""
    world, dice = run.world, run.dice("others", request.stage.group)
    named = {(one.layer, one.head) for one in circuit(world.model) if one.group == request.stage.group}
    if world.name == "rival":
        others = [one for one in senders if one not in named]
        named = set() if request.senders else {others[n] for n in dice.choice(len(others), len(named), replace=False)}
    size = world.mean("paths.fall") * world.mean("logit.circuit")
    return np.array([size * (one in named) for one in senders])
