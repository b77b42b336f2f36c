"""By which function evidence of each kind of request is made up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pandas as pd

from rebinding.evidence import Request
from rebinding.experiments.binding.request import Shifts
from rebinding.experiments.circuit.request import Ability, Ablation, Paths, Pruning, Stream
from rebinding.experiments.roles.request import Interchange
from rebinding.power import ability, ablation, binding, paths, pruning, roles, stream
from rebinding.power.world import Run
from rebinding.study.bench import Bench
from rebinding.study.floors import Floors
from rebinding.study.replays import Replays

Maker: TypeAlias = Callable[[Bench, Any, Run], tuple[pd.DataFrame, dict[str, Any]]]
"""From prompts, a request and a sample of a world to rows, and to the settings that summaries look at."""
MAKERS: Mapping[type[Request], Maker] = {
    Replays: ability.replays,
    Floors: ability.floors,
    Ability: ability.ability,
    Interchange: roles.interchange,
    Shifts: binding.shifts,
    Ablation: ablation.ablation,
    Paths: paths.paths,
    Pruning: pruning.pruning,
    Stream: stream.stream,
}
