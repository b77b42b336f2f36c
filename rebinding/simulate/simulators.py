"""The table of simulators: the function that draws evidence of each experiment, or why there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pandas as pd

from rebinding.evidence import Request
from rebinding.experiments.prompts import Prompts
from rebinding.paper.worlds import NotSimulated, Run
from rebinding.simulate.attention import simulate_attention, simulate_shifts
from rebinding.simulate.circuits import (
    simulate_ability,
    simulate_ablation,
    simulate_contributions,
    simulate_floors,
    simulate_group_knockout,
    simulate_interchange,
    simulate_paths,
    simulate_pruning,
    simulate_random_interchange,
    simulate_replays,
    simulate_stream,
)
from rebinding.simulate.tracing import simulate_answered, simulate_diagnostic, simulate_map, simulate_mention

Simulator: TypeAlias = Callable[[Prompts, Any, Run], tuple[pd.DataFrame, dict[str, Any]]]
"""From prompts, a request and a sample of a world to rows, and to the settings that summaries look at."""
SIMULATORS: dict[str, Simulator] = {
    "ability": simulate_ability,
    "replays": simulate_replays,
    "floors": simulate_floors,
    "answered": simulate_answered,
    "tracing": simulate_map,
    "first-mention": simulate_mention,
    "readout-diagnostic": simulate_diagnostic,
    "paths": simulate_paths,
    "ablation": simulate_ablation,
    "group-knockout": simulate_group_knockout,
    "pruning": simulate_pruning,
    "contributions": simulate_contributions,
    "stream": simulate_stream,
    "roles": simulate_interchange,
    "random groups": simulate_random_interchange,
    "attention": simulate_attention,
    "binding": simulate_shifts,
}
LEFT_OUT: dict[str, str] = {
    "stored-state": "ours; no sentence says which tokens hold the objects",
    "means": "tensors; a simulated ablation needs none",
    "unswapped": "ours; the paper says nothing of the circuit on stories without its swap",
    "knockout": "ours; no sentence says what the model does without the circuit",
    "search steps": "ours; a world would have to say which of all heads and tokens a search finds",
    "search losses": "ours; a world would have to say which of all heads and tokens a search finds",
    "crossings": "ours; a world would have to say which of all heads and tokens a search finds",
    "searched circuit": "ours; a world would have to say which of all heads and tokens a search finds",
    "swap_label_directions": "tensors; the exchange that needs them is not simulated",
    "swap_labels": "ours; no sentence says what a swap label's key does",
    "shaped-attention": "the text has no number for what D does to C's attention",
    "directions": "tensors; a simulated shift needs none",
    "exchange": "ours; no sentence says what a head's own query of another question does",
}
"""Why there is no simulated evidence of an experiment; the table of rates shows the reason."""


def simulator_of(kind: type[Request]) -> Simulator:
    """The function that draws evidence of a class of requests; NotSimulated names one that has none, and why."""
    name = kind.KIND.name
    if name not in SIMULATORS:
        raise NotSimulated(f"{name} ({LEFT_OUT[name]})" if name in LEFT_OUT else name)
    return SIMULATORS[name]
