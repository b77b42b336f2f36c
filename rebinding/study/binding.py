"""The interventions of section 5 under the designs and pairs of slots that the claims speak of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import pandas as pd
from torch import Tensor

from rebinding.evidence import Evidence
from rebinding.experiments.binding.cases import Slots, every_pair
from rebinding.experiments.binding.conditions import MATCHED_RANDOM, PUBLISHED_CONDITIONS, TABLE, Condition
from rebinding.experiments.binding.directions import Directions, Point, measure_directions
from rebinding.experiments.binding.exchange import run_exchange
from rebinding.experiments.binding.kinds import BINDING
from rebinding.experiments.binding.request import Exchange, MeanVectors, Shifts
from rebinding.experiments.binding.shifts import run_binding
from rebinding.experiments.seeds import MATCHED
from rebinding.paper.circuit import Circuit, Head
from rebinding.paper.procedure import BindingWay
from rebinding.study.bench import DIRECTIONS, DISCOVERY, Bench, averages, measures
from rebinding.surgery.sites import Scope
from rebinding.world.designs import Design, DesignName

SLOTS = 3
POINT: Point = "raw"
"""Where queries and keys are shifted, as published: before any norm and before RoPE."""
FIRST_PAIR: tuple[Slots, ...] = ((1, 0),)
MATCHED_Q, MATCHED_K, MATCHED_QK = MATCHED_RANDOM


@dataclass(frozen=True)
class Variation:
    """Which conditions are run, and what is done otherwise than the procedure says; None where nothing is."""

    conditions: tuple[Condition, ...]
    pairs: tuple[Slots, ...] = FIRST_PAIR
    scope: Scope | None = None
    random: bool = False
    """Whether random directions are drawn many times."""


VARIATIONS: Mapping[str, Variation] = MappingProxyType(
    {
        "published": Variation(PUBLISHED_CONDITIONS),
        "controlled": Variation((*TABLE, MATCHED_QK)),
        "isolated": Variation(TABLE, scope="head"),
        "third slot": Variation(TABLE, pairs=((1, 2),)),
        "random directions": Variation((*TABLE, MATCHED_Q, MATCHED_K), random=True),
    }
)
"""The two procedures, and what else is asked of the first."""


def shifted(
    bench: Bench,
    circuit: Circuit,
    name: DesignName,
    variation: str,
    way: BindingWay,
    *,
    n: int,
    directions: int,
    draws: int,
    cut: int = 0,
) -> Shifts:
    """Queries and keys of group B shifted, in one of the variations; directions are the mean of so many prompts. All
    prompts are that many tokens short."""
    how = VARIATIONS[variation]
    shown: DesignName = "counterbalanced" if way.pairs == "every" else name
    every = shown == "counterbalanced"
    eyes, ids = looked_at(bench, name, way, n)
    return Shifts(
        prompts=bench.draw(eyes, ids, cut=cut),
        batches=tuple(
            vectors(bench, shown, circuit.group("B"), range(start, start + directions), cut)
            for start in range(DIRECTIONS, DIRECTIONS + way.batches * directions, directions)
        ),
        variation=variation,
        slots=every_pair(SLOTS) if every else how.pairs,
        conditions=how.conditions,
        scope=how.scope or way.scope,
        draws=draws if how.random else 1,
        read=way.read,
        answers=way.answers,
    )


def looked_at(bench: Bench, name: DesignName, way: BindingWay, n: int) -> tuple[Design, range]:
    """The stories on which queries and keys are edited."""
    first = bench.evaluation if way.ids == "held_out" else DISCOVERY + bench.first
    every = way.pairs == "every" or name == "counterbalanced"
    eyes = bench.design("counterbalanced", split="evaluation") if every else bench.design(name)
    return eyes, range(first, first + n)


def exchanged(bench: Bench, drawn: Design, circuit: Circuit, n: int, *, way: BindingWay) -> Exchange:
    """Real queries and keys of group B, on the stories on which they are shifted."""
    eyes, ids = looked_at(bench, drawn.name, way, n)
    donors = tuple(bench.draw(eyes, ids, ("slot", str(slot))) for slot in range(SLOTS))
    pairs = every_pair(SLOTS) if eyes.name == "counterbalanced" else FIRST_PAIR
    return Exchange(bench.draw(eyes, ids), donors, circuit.group("B"), pairs, way.answers)


@measures(Exchange)
def measure_exchange(bench: Bench, asked: Exchange) -> Evidence:
    return run_exchange(
        bench.surgeon,
        bench.drawn(asked.prompts).prompts,
        [bench.drawn(one).prompts for one in asked.donors],
        asked.heads,
        ids=asked.prompts.ids,
        token=lambda word: bench.encoder.answer_token(word, asked.answers),
        pairs=asked.slots,
    )


def vectors(bench: Bench, name: DesignName, heads: Sequence[Head], ids: Sequence[int], cut: int = 0) -> MeanVectors:
    """The directions of some heads, from these prompts for every slot; measured once for all variations."""
    asks = bench.design(name, split="directions" if name == "counterbalanced" else None)
    slots = tuple(bench.draw(asks, ids, ("slot", str(slot)), cut=cut) for slot in range(SLOTS))
    return MeanVectors(slots, tuple(heads), POINT)


@averages(MeanVectors)
def measure_vectors(bench: Bench, asked: MeanVectors) -> Mapping[str, Tensor]:
    prompts = {slot: bench.drawn(one).prompts for slot, one in enumerate(asked.slots)}
    found = measure_directions(bench.surgeon, prompts, asked.heads, point=asked.point)
    return {"q": found.q, "k": found.k}


@measures(Shifts)
def measure_shifts(bench: Bench, asked: Shifts) -> Evidence:
    """Every batch of directions on every prompt, with its own random vectors; `draw` counts on from batch to batch."""
    found = [_of_batch(bench, asked, vectors, MATCHED + number) for number, vectors in enumerate(asked.batches)]
    rows = [one.rows.assign(draw=one.rows["draw"] + number * asked.draws) for number, one in enumerate(found)]
    return BINDING.evidence(pd.concat(rows, ignore_index=True), found[0].settings)


def _of_batch(bench: Bench, asked: Shifts, vectors: MeanVectors, seed: int) -> Evidence:
    return run_binding(
        bench.surgeon,
        bench.drawn(asked.prompts).prompts,
        Directions(vectors.heads, vectors.point, **bench.averaged(vectors)),
        vectors.heads,
        ids=asked.prompts.ids,
        token=lambda word: bench.encoder.answer_token(word, asked.answers),
        pairs=asked.slots,
        conditions=asked.conditions,
        scope=asked.scope,
        draws=asked.draws,
        seed=seed,
    )
