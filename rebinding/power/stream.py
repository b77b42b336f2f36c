"""Section 4.1, E', made up: what is left of the circuit's margin when the stream at the context is another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from rebinding.experiments.circuit.request import Stream
from rebinding.power.ability import answered
from rebinding.power.world import Run
from rebinding.study.bench import Bench


def stream(bench: Bench, asked: Stream, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per prompt. The stream takes its share of the circuit's printed margin with it."""
    ids, world = np.array(asked.prompts.ids), run.world
    before = answered(run, "circuit", len(ids), asked.prompts.tokens, "stream")["margin"]
    fall = world.mean("stream") * world.mean("margin.circuit")
    falls = fall + world.around(fall) * run.dice("stream", asked.prompts.tokens).standard_normal(len(ids))
    return pd.DataFrame({"prompt": ids, "before": before, "after": before - falls, "moved": 1.0}), {}
