"""Section 4.1: which heads of a circuit does it need? The published walk, and how much it depends on the order.

Walk the list once; remove a head if the measure drops by less than 0.01 without it, and go on from what is left. The
measure is the mean logit of the answer, so the step is 0.01 logits on 50 prompts; for accuracy the drop is relative,
before / without - 1. What the text describes instead is in `rebinding.experiments.circuit.contributions`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rebinding.experiments.seeds import WALKS
from rebinding.paper.circuit import Circuit, CircuitHead

Score = Callable[[Sequence[Circuit]], list[float]]
"""Many circuits at once, so that they can be one batch."""


@dataclass(frozen=True)
class Trial:
    """One head tried: the measure with it, without it, the drop, and what became of it."""

    head: CircuitHead
    before: float
    without: float
    drop: float
    removed: bool

    @property
    def told(self) -> dict[str, float | bool]:
        """What a table tells of it, beside the head."""
        return {"before": self.before, "drop": self.drop, "removed": self.removed}


@dataclass(frozen=True)
class Pruned:
    """What is left, and every trial on the way."""

    circuit: Circuit
    trials: tuple[Trial, ...]


def _drop(before: float, without: float, relative: bool) -> float:
    if not relative:
        return before - without
    return float("inf") if without == 0 else before / without - 1


def _walk(circuits: Sequence[Circuit], score: Score, threshold: float, relative: bool) -> list[Pruned]:
    """Walks through lists of equal length, side by side: what they try at a step is one batch."""
    left, current = list(circuits), score(circuits)
    trials: list[list[Trial]] = [[] for _ in circuits]
    for step in zip(*(circuit.heads for circuit in circuits), strict=True):
        shorter = [circuit.without([head]) for circuit, head in zip(left, step, strict=True)]
        for number, without in enumerate(score(shorter)):
            drop = _drop(current[number], without, relative)
            trials[number].append(Trial(step[number], current[number], without, drop, drop < threshold))
            if drop < threshold:
                left[number], current[number] = shorter[number], without
    return [Pruned(circuit, tuple(tried)) for circuit, tried in zip(left, trials, strict=True)]


def over_orders(
    circuit: Circuit, score: Score, *, orders: int, seed: int = WALKS, threshold: float = 0.01, relative: bool = False
) -> list[Pruned]:
    """The published walk in the given order and in shuffled ones: how far does the outcome depend on it?"""
    draws = random.Random(seed)
    lists = [circuit]
    for _ in range(orders - 1):
        shuffled = list(circuit.heads)
        draws.shuffle(shuffled)
        lists.append(Circuit(tuple(shuffled), circuit.settings))
    return _walk(lists, score, threshold, relative)
