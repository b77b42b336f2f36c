"""The interventions of section 5 under the designs and pairs of slots that the claims speak of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor

from rebinding.evidence import Evidence
from rebinding.experiments.binding.cases import Slots, every_pair
from rebinding.experiments.binding.conditions import MATCHED_RANDOM, PUBLISHED_CONDITIONS, TABLE, Condition
from rebinding.experiments.binding.directions import Directions, Point, measure_directions
from rebinding.experiments.binding.request import MeanVectors, Shifts
from rebinding.experiments.binding.shifts import run_binding
from rebinding.paper.circuit import Circuit, Head
from rebinding.study.bench import DIRECTIONS, EVALUATION, Bench, averages, measures
from rebinding.surgery.sites import Scope
from rebinding.world.designs import DesignName

SLOTS = 3
POINT: Point = "raw"
"""Where queries and keys are shifted, as published: before any norm and before RoPE."""
FIRST_PAIR: tuple[Slots, ...] = ((1, 0),)


@dataclass(frozen=True)
class Variation:
    """How the interventions are run. `design` None stands for the one that was asked for."""

    conditions: tuple[Condition, ...]
    pairs: tuple[Slots, ...] = FIRST_PAIR
    scope: Scope = "group"
    design: DesignName | None = None
    draws: int = 1


VARIATIONS: Mapping[str, Variation] = MappingProxyType(
    {
        "published": Variation(PUBLISHED_CONDITIONS),
        "isolated": Variation(TABLE, scope="head"),
        "third slot": Variation(TABLE, pairs=((1, 2),)),
        "counterbalanced": Variation(TABLE, pairs=every_pair(SLOTS), design="counterbalanced"),
        "random directions": Variation((*TABLE, *MATCHED_RANDOM[:2]), draws=40),
    }
)


def shifted(
    bench: Bench, circuit: Circuit, name: DesignName, variation: str, *, n: int, directions: int = 100
) -> Shifts:
    """Queries and keys of group B shifted, in one of the variations."""
    how = VARIATIONS[variation]
    shown = how.design or name
    eyes = bench.design(shown, split="evaluation" if shown == "counterbalanced" else None)
    return Shifts(
        prompts=bench.draw(eyes, range(EVALUATION, EVALUATION + n)),
        directions=vectors(bench, shown, circuit.group("B"), directions),
        variation=variation,
        slots=every_pair(SLOTS) if shown == "counterbalanced" else how.pairs,
        conditions=how.conditions,
        scope=how.scope,
        draws=how.draws,
    )


def vectors(bench: Bench, name: DesignName, heads: Sequence[Head], n: int) -> MeanVectors:
    """The directions of some heads, from `n` prompts for every slot; measured once for all variations."""
    asks = bench.design(name, split="directions" if name == "counterbalanced" else None)
    ids = range(DIRECTIONS, DIRECTIONS + n)
    return MeanVectors(tuple(bench.draw(asks, ids, ("slot", str(slot))) for slot in range(SLOTS)), tuple(heads), POINT)


@averages(MeanVectors)
def measure_vectors(bench: Bench, asked: MeanVectors) -> Mapping[str, Tensor]:
    prompts = {slot: bench.drawn(one).prompts for slot, one in enumerate(asked.slots)}
    found = measure_directions(bench.surgeon, prompts, asked.heads, point=asked.point)
    return {"q": found.q, "k": found.k}


@measures(Shifts)
def measure_shifts(bench: Bench, asked: Shifts) -> Evidence:
    heads = asked.directions.heads
    return run_binding(
        bench.surgeon,
        bench.drawn(asked.prompts).prompts,
        Directions(heads, asked.directions.point, **bench.averaged(asked.directions)),
        heads,
        ids=asked.prompts.ids,
        token=bench.encoder.answer_token,
        pairs=asked.slots,
        conditions=asked.conditions,
        scope=asked.scope,
        draws=asked.draws,
    )
