"""What the heads of a circuit contribute, by the criterion that the text states."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd
from torch import Tensor

from rebinding.evidence import Evidence
from rebinding.experiments.circuit.ablation import measurer
from rebinding.experiments.circuit.contributions import Hits, contributions, sets_beside
from rebinding.experiments.circuit.kinds import MEASURES
from rebinding.experiments.circuit.request import Contributions
from rebinding.experiments.readout import BLOCK, blocks
from rebinding.paper.circuit import Circuit
from rebinding.paper.procedure import CircuitWay
from rebinding.study.bench import Bench, measures
from rebinding.study.circuit import listed, means_of, roles_of
from rebinding.world.designs import Design

RANDOM_SETS = 8
HIT = MEASURES.index("hit")


def contributed(bench: Bench, drawn: Design, circuit: Circuit, n: int, *, way: CircuitWay) -> Contributions:
    """Every head of a circuit, on prompts that it was not found on."""
    prompts = bench.draw_with(drawn, bench.evaluation, n, roles_of(circuit))
    return Contributions(prompts, means_of(bench, drawn, way.means), circuit.heads, RANDOM_SETS, way.answers)


@measures(Contributions)
def measure_contributions(bench: Bench, asked: Contributions) -> Evidence:
    """Block by block, so that a run of many prompts holds the recordings of a few."""
    prompts, circuit, means = bench.drawn(asked.prompts).prompts, Circuit(asked.circuit), listed(bench, asked.means)
    gone, frames = sets_beside(circuit, asked.random_sets), []
    for where in blocks(len(prompts), BLOCK):
        run = measurer(bench.surgeon, prompts[where], bench.answers(prompts[where], asked.answers), means)
        frames.append(contributions(circuit, _hits(run), gone, asked.prompts.ids[where]))
    return asked.KIND.evidence(pd.concat(frames, ignore_index=True), {})


def _hits(run: Callable[[Sequence[Circuit]], Tensor]) -> Hits:
    """Of all measures, whether the answer is right."""
    return lambda circuits: run(circuits)[..., HIT]  # (circuit, prompt)
