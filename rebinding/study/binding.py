"""The interventions of section 5 under the designs and pairs of slots that the claims speak of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from torch import Tensor

from rebinding.evidence import Evidence
from rebinding.experiments.binding.cases import Slots, every_pair
from rebinding.experiments.binding.conditions import MATCHED_RANDOM, PUBLISHED_CONDITIONS, TABLE, Condition
from rebinding.experiments.binding.directions import Directions, Head, Point, measure_directions
from rebinding.experiments.binding.shifts import run_binding
from rebinding.paper.circuit import Circuit
from rebinding.study.bench import DIRECTIONS, EVALUATION, Bench
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
) -> Evidence:
    """Queries and keys of group B shifted, in one of the variations."""
    how = VARIATIONS[variation]
    drawn, heads = how.design or name, circuit.group("B")
    settings = {"heads": list(heads), "design": drawn, "n": n, "directions": directions, **_plain(how)}

    def compute() -> Evidence:
        eyes = bench.design(drawn, split="evaluation" if drawn == "counterbalanced" else None)
        ids, prompts = bench.prompts(eyes, EVALUATION, n)
        pairs = every_pair(SLOTS) if drawn == "counterbalanced" else how.pairs
        return run_binding(
            bench.surgeon,
            prompts,
            measured(bench, drawn, heads, directions),
            heads,
            ids=ids,
            token=bench.encoder.answer_token,
            pairs=pairs,
            conditions=how.conditions,
            scope=how.scope,
            draws=how.draws,
        )

    return bench.kept("binding", __name__, settings, compute)


def measured(bench: Bench, name: DesignName, heads: Sequence[Head], n: int) -> Directions:
    """The directions of some heads, from `n` prompts for every slot; measured once for all variations."""
    settings = {"design": name, "heads": list(heads), "n": n, "slots": SLOTS, "point": POINT}

    def compute() -> dict[str, Tensor]:
        asks = bench.design(name, split="directions" if name == "counterbalanced" else None)
        numbers = range(DIRECTIONS, DIRECTIONS + n)
        asked = {
            slot: bench.encoder.encode(asks.direction(number, slot) for number in numbers) for slot in range(SLOTS)
        }
        found = measure_directions(bench.surgeon, asked, heads, point=POINT)
        return {"q": found.q, "k": found.k}

    return Directions(tuple(heads), POINT, **bench.activations("directions", __name__, settings, compute))


def _plain(how: Variation) -> dict[str, Any]:
    conditions: Sequence[Condition] = how.conditions
    return {**asdict(how), "conditions": [asdict(one) for one in conditions], "design_given": how.design is None}
