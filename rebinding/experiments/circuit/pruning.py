"""Section 4.1: which heads of a circuit does it need? The paper's two answers, and how much they depend on the order.

* `published`: walk the list once; remove a head if the measure drops by less than 0.01 without it, and go on from what
  is left. The measure is the mean logit of the answer, so the step is 0.01 logits on 50 prompts; for accuracy the drop
  is relative, before / without - 1.
* `stated`: what the text describes. The contribution of v given a set K that is removed as well is
  (F(C - K) - F(C - K - v)) / F(C - K - v), F candidate accuracy; a head is removed if its largest contribution over a
  declared sample of sets K is below one per cent.
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


def prune_published(circuit: Circuit, score: Score, *, threshold: float = 0.01, relative: bool = False) -> Pruned:
    """One walk through the list, front to back."""
    return _walk([circuit], score, threshold, relative)[0]


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


def prune_stated(
    circuit: Circuit, score: Score, *, threshold: float = 0.01, subsets: int = 10, seed: int = WALKS
) -> Pruned:
    """Remove the heads whose largest relative contribution, over sampled sets K, stays below the threshold.

    The sets of a head are the empty one and `subsets - 1` random ones, each of which leaves out every other head with
    probability one half. All circuits of all heads are one batch.
    """
    draws = random.Random(seed)
    pairs: list[tuple[Circuit, Circuit]] = []
    for head in circuit.heads:
        others = [other for other in circuit.heads if other != head]
        for number in range(subsets):
            left_out = [other for other in others if number and draws.random() < 0.5]
            pairs.append((circuit.without(left_out), circuit.without([*left_out, head])))
    values = score([one for pair in pairs for one in pair])
    trials, gone = [], []
    for number, head in enumerate(circuit.heads):
        span = range(number * subsets, (number + 1) * subsets)
        drops = [(_drop(values[2 * at], values[2 * at + 1], True), values[2 * at], values[2 * at + 1]) for at in span]
        drop, before, without = max(drops)
        removed = drop < threshold
        trials.append(Trial(head, before, without, drop, removed))
        gone += [head] if removed else []
    return Pruned(circuit.without(gone), tuple(trials))


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
