"""Path patching, simulated: how much every sender lowers the answer's lead, prompt by prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from rebinding.experiments.paths.request import Paths, write_stratum
from rebinding.experiments.prompts import Prompts
from rebinding.experiments.simulation import simulates
from rebinding.experiments.unedited.simulate import margin_spread, probability
from rebinding.paper.circuit import Head
from rebinding.paper.numbers import checkpoint, circuit
from rebinding.paper.worlds import Run

Array: TypeAlias = npt.NDArray[np.float64]


@simulates(Paths)
def simulate_paths(prompts: Prompts, request: Paths, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per prompt and sender. Heads of the published group lower the lead by their share of the circuit's logit;
    all others change it a little, up or down. In the rival's world, where all heads send, as many heads outside the
    published group have the effect instead."""
    shape = checkpoint(run.world.model)
    heads = [(layer, head) for layer in range(shape.layers) for head in range(shape.heads)]
    senders, ids = list(request.senders or heads), np.array(request.prompts.ids)
    fall = _falls(request, run, senders)
    key = request.stage.group, request.stage.component, request.prompts.tokens, request.settings.frozen
    dice, world = run.dice("paths", *key, len(senders)), run.world
    spreads = np.where(fall > 0, world.spreads["effect"] * fall, world.spreads["idle"])  # (head,)
    change = -fall + spreads * dice.standard_normal((len(ids), len(senders)))  # (prompt, head)
    lead = world.mean("margin.full") + margin_spread(world, "full") * run.dice("lead", *key).standard_normal(len(ids))
    before = np.repeat(lead, len(senders))
    after = before + change.ravel()
    layer, head = np.tile(np.array(senders), (len(ids), 1)).T
    strata = np.array([write_stratum(encoded.prompt) for encoded in prompts.encode(request.prompts).prompts])
    rows = {
        "prompt": np.repeat(ids, len(senders)),
        "stratum": np.repeat(strata, len(senders)),
        "layer": layer,
        "head": head,
        "relative_change": 1.0,
    }
    for name, value in (("orig", before), ("patch", after)):
        rows |= {f"logit_{name}": value, f"lead_{name}": value, f"p_{name}": probability(value)}
    return pd.DataFrame(rows), {"stage": {"top_k": request.stage.top_k}}


def _falls(request: Paths, run: Run, senders: Sequence[Head]) -> Array:
    """The drop that every sender causes, in logits."""
    world, dice = run.world, run.dice("others", request.stage.group)
    active = {(head.layer, head.head) for head in circuit(world.model) if head.group == request.stage.group}
    if world.name == "rival":
        others = [head for head in senders if head not in active]
        active = set() if request.senders else {others[n] for n in dice.choice(len(others), len(active), replace=False)}
    size = world.mean("paths.fall") * world.mean("logit.circuit")
    return np.array([size * (head in active) for head in senders])
