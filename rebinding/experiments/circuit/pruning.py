"""Section 4.1: prune a circuit by the published walk, and see how much the result depends on the order.

Walk through the list of heads once; remove a head if the measure drops by less than 0.01 without it, and continue with
the smaller circuit. The measure is the mean logit of the answer, so the step is 0.01 logits on 50 prompts; for accuracy
the drop is relative, before / without - 1. `rebinding.experiments.circuit.contributions` is what the text describes
instead.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rebinding.experiments.seeds import WALKS
from rebinding.paper.circuit import Circuit, CircuitHead

Score = Callable[[Sequence[Circuit]], list[float]]
"""Scores of many circuits, so that they can be one batch."""


@dataclass(frozen=True)
class Trial:
    """One step of a walk: the measure with and without a head, the drop, and whether the head was removed."""

    head: CircuitHead
    before: float
    without: float
    drop: float
    removed: bool

    @property
    def columns(self) -> dict[str, float | bool]:
        """The columns of a table, except those of the head."""
        return {"before": self.before, "drop": self.drop, "removed": self.removed}


@dataclass(frozen=True)
class Pruned:
    """The pruned circuit, and every trial of the walk."""

    circuit: Circuit
    trials: tuple[Trial, ...]


def _drop(before: float, without: float, relative: bool) -> float:
    if not relative:
        return before - without
    return float("inf") if without == 0 else before / without - 1


def in_orders(circuit: Circuit, orders: int, seed: int = WALKS) -> list[Circuit]:
    """The circuit in the given order of its heads, and in shuffled orders."""
    generator = random.Random(seed)
    circuits = [circuit]
    for _ in range(orders - 1):
        shuffled = list(circuit.heads)
        generator.shuffle(shuffled)
        circuits.append(Circuit(tuple(shuffled), circuit.settings))
    return circuits


def walk(circuits: Sequence[Circuit], score: Score, *, threshold: float = 0.01, relative: bool = False) -> list[Pruned]:
    """Walk through circuits of equal size in parallel: the trials of a step are one batch."""
    remaining, current = list(circuits), score(circuits)
    trials: list[list[Trial]] = [[] for _ in circuits]
    for step in zip(*(circuit.heads for circuit in circuits), strict=True):
        shorter = [circuit.without([head]) for circuit, head in zip(remaining, step, strict=True)]
        for number, without in enumerate(score(shorter)):
            drop = _drop(current[number], without, relative)
            trials[number].append(Trial(step[number], current[number], without, drop, drop < threshold))
            if drop < threshold:
                remaining[number], current[number] = shorter[number], without
    return [Pruned(circuit, tuple(steps)) for circuit, steps in zip(remaining, trials, strict=True)]
