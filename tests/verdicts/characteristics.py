"""How often each rule decides wrongly: `python -m tests.verdicts.characteristics` prints the table of the docs.

Samples have mean 0 and spread 1; the truth is put where it is wanted, in margins, by moving the estimate, and the
margin is made small or large against the spread. So one set of samples serves every cell, through the very functions
that judge one experiment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import stats

from rebinding.verdicts.effects import effect_outcomes, no_effect_outcomes
from rebinding.verdicts.estimates import Array, Estimate, estimate
from rebinding.verdicts.outcome import Outcomes
from rebinding.verdicts.values import PrintedReference, value_outcomes

REPETITIONS = 4000
FALSE_ALARM = 1e-6
"""How often a correct rule may fail a test of its error rate; every threshold on a simulated rate follows from it."""


def share(outcomes: npt.NDArray[np.str_], outcome: str) -> float:
    """How often an outcome appeared."""
    return float((outcomes == outcome).mean())


def rate_is_at_most(rate: float, repetitions: int = REPETITIONS) -> float:
    """The share that a rule with error `rate` exceeds with probability `FALSE_ALARM` only (binomial quantile)."""
    return float(stats.binom.ppf(1 - FALSE_ALARM, repetitions, rate)) / repetitions


def rate_is_at_least(rate: float, repetitions: int = REPETITIONS) -> float:
    """The share that a rule with power `rate` falls short of with probability `FALSE_ALARM` only."""
    return float(stats.binom.ppf(FALSE_ALARM, repetitions, rate)) / repetitions


Sampler: TypeAlias = Callable[[np.random.Generator, tuple[int, ...]], Array]
SAMPLERS: Mapping[str, Sampler] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "tied": lambda rng, shape: np.round(rng.normal(size=shape)) / 1.0408,  # whole numbers of spread sqrt(1 + 1 / 12)
    "heavy": lambda rng, shape: rng.standard_t(3, shape) / np.sqrt(3),
    "skewed": lambda rng, shape: rng.exponential(size=shape) - 1,  # skewness 2
    "very skewed": lambda rng, shape: (rng.lognormal(size=shape) - np.sqrt(np.e)) / np.sqrt(np.e * (np.e - 1)),  # 6.2
}
TRUTHS: Sequence[float] = tuple(np.arange(-3, 3.5, 0.5))
"""In margins; the rules change their mind at 1, and where they have two sides at -1."""
SPREADS = (0.3, 1.0, 3.0, 30.0)
"""Of one example, in margins."""
PAPER_N = 300
LEVEL = 0.05
STATED: Mapping[str, Mapping[int, float]] = {
    "skewed": {300: 0.055, 100: 0.06, 30: 0.07, 10: 0.10, 5: 0.12},
    "very skewed": {1000: 0.06, 300: 0.07, 100: 0.085, 30: 0.11, 10: 0.15, 5: 0.18},
}
"""What wrong decisions are said to come to from so many units on, where it is more than 5 %."""


def stated(sampler: str, n: int) -> float:
    """The largest share of wrong decisions that the docs own to."""
    return next((rate for threshold, rate in STATED.get(sampler, {}).items() if n >= threshold), LEVEL)


@dataclass(frozen=True)
class Samples:
    """What was measured in many experiments, and what as many papers printed of experiments like them."""

    measurement: Estimate
    papers: Array


def samples(name: str, n: int, repetitions: int) -> Samples:
    """Drawn anew for every N, a few million numbers at a time."""
    rng = np.random.default_rng([n, repetitions, *name.encode()])
    parts, papers, block = [], [], max(1, 2_000_000 // max(n, PAPER_N))
    for start in range(0, repetitions, block):
        count = min(block, repetitions - start)
        parts.append(estimate(SAMPLERS[name](rng, (count, n)), unit="prompts"))
        papers.append(SAMPLERS[name](rng, (count, PAPER_N)).mean(-1).round(2))

    def joined(field: str) -> Array:
        return np.concatenate([getattr(part, field) for part in parts])

    measurement = replace(
        parts[0], mean=joined("mean"), unit_var=joined("unit_var"), n=joined("n"), skew=joined("skew")
    )
    return Samples(
        replace(measurement, df=np.asarray(n - 1.0)), np.concatenate(papers)
    )  # the same for all: much faster


Judge: TypeAlias = Callable[[Samples, float, float], Outcomes]


def _shift_mean(data: Samples, shift: float) -> Estimate:
    return replace(data.measurement, mean=data.measurement.mean + shift)


JUDGES: Mapping[str, Judge] = {
    "effect": lambda data, truth, margin: effect_outcomes(_shift_mean(data, truth), margin),
    "no-effect": lambda data, truth, margin: no_effect_outcomes(_shift_mean(data, truth), margin),
    "value": lambda data, truth, margin: value_outcomes(
        _shift_mean(data, truth), PrintedReference(data.papers, 0.005, PAPER_N, 1, False), margin
    ),
}
"""A rule, told samples, the true mean, and the margin. (An ordering is an effect of paired differences.)"""


def holds(rule: str, truth: float) -> tuple[bool, bool]:
    """Whether the sentence may be REPLICATED, and whether it may be NOT REPLICATED; on the boundary, neither."""
    excess = truth - 1 if rule == "effect" else 1 - abs(truth)
    return excess > 0, excess < 0


@dataclass(frozen=True)
class Cell:
    """How often a rule said what, at one truth and one spread, on N units."""

    rule: str
    sampler: str
    n: int
    truth: float
    spread: float
    replicated: float
    rejected: float

    @property
    def wrong(self) -> float:
        """The share of decisions that the truth does not allow."""
        positive, negative = holds(self.rule, self.truth)
        return max(0.0 if positive else self.replicated, 0.0 if negative else self.rejected)

    @property
    def right(self) -> float:
        """The share of decisions that the truth asks for."""
        positive, negative = holds(self.rule, self.truth)
        return self.replicated if positive else self.rejected if negative else 0.0


def cells(
    sampler: str, n: int, repetitions: int, truths: Sequence[float] = TRUTHS, spreads: Sequence[float] = SPREADS
) -> Iterator[Cell]:
    """Every rule at every truth and spread."""
    data = samples(sampler, n, repetitions)
    for (rule, judge), truth, spread in product(JUDGES.items(), truths, spreads):
        margin = 1 / spread
        outcomes: npt.NDArray[np.str_] = judge(data, truth * margin, margin)
        positive, negative = (share(outcomes, outcome) for outcome in ("REPLICATED", "NOT REPLICATED"))
        yield Cell(rule, sampler, n, truth, spread, positive, negative)


SIZES = (5, 10, 30, 100, 300, 1000, 3000)


def table(repetitions: int = 10_000) -> Iterator[str]:
    """The worst share of wrong decisions per rule, distribution and N, in per cent."""
    yield "| rule | data | " + " | ".join(f"N = {n}" for n in SIZES) + " |"
    yield "|---|---|" + "---|" * len(SIZES)
    worst: dict[tuple[str, str], dict[int, float]] = {}
    for sampler, n in product(SAMPLERS, SIZES):
        for cell in cells(sampler, n, repetitions):
            row = worst.setdefault((cell.rule, sampler), {})
            row[n] = max(row.get(n, 0.0), cell.wrong)
    for (rule, sampler), row in sorted(worst.items(), key=lambda item: list(JUDGES).index(item[0][0])):
        yield f"| {rule} | {sampler} | " + " | ".join(f"{100 * row[n]:.1f}" for n in SIZES) + " |"


if __name__ == "__main__":
    for line in table():
        print(line, flush=True)
