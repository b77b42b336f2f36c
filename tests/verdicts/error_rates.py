"""Error rates at the boundary: values without bounds, shared words, few sets of directions, one set of directions.

`python -m tests.verdicts.error_rates` prints the tables of `docs/decisions/verdict-rules.md`. The true mean lies on
the boundary, so every decision is wrong. A cell is the largest share of decisions, over effect (and ordering),
no-effect and value, over REPLICATED and NOT REPLICATED (so over both signs of skewness), and over both edges of the
margin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TypeAlias

import numpy as np

from rebinding.simulate.worlds import declared
from rebinding.task.words import Vocabulary
from rebinding.verdicts.effects import effect_outcomes, no_effect_outcomes
from rebinding.verdicts.estimates import Array, Estimate, estimate
from rebinding.verdicts.outcome import Outcomes
from rebinding.verdicts.values import PrintedReference, value_outcomes
from tests.verdicts.characteristics import PAPER_N, SAMPLERS, Sampler

EXPERIMENTS = 10_000
BLOCK = 1000
"""The number of experiments that are simulated at once."""
MARGIN = 1.0
"""In spreads of a prompt: from one edge the other one is too far away to matter."""


@dataclass(frozen=True)
class Experiments:
    """Measurements whose true mean is 0, and the means that as many papers print. Without papers no value is judged."""

    measurement: Estimate
    papers: Array | None = None


Simulation: TypeAlias = Callable[[np.random.Generator, int], Experiments]
"""Simulates a number of experiments."""


def worst_error(simulation: Simulation, experiments: int = EXPERIMENTS) -> float:
    """The largest share of wrong decisions at the boundary; the seed is the same for every cell."""
    rng, blocks = np.random.default_rng(experiments), experiments // BLOCK
    counts = np.sum([count_decisions(simulation(rng, BLOCK)) for _ in range(blocks)], axis=0)
    return float(counts.max()) / (blocks * BLOCK)


def count_decisions(experiments: Experiments) -> Array:
    """The number of experiments with a decision, by rule, edge and outcome."""
    judged = product(judge_at_edges(experiments), ("REPLICATED", "NOT REPLICATED"))
    return np.array([(outcomes == name).sum() for outcomes, name in judged], np.float64)


def judge_at_edges(experiments: Experiments) -> Iterator[Outcomes]:
    """Outcomes of every rule if the true mean is an edge of the margin."""
    measurement, papers = experiments.measurement, experiments.papers
    yield effect_outcomes(measurement, 0.0)
    for edge in (-MARGIN, MARGIN):
        shifted = replace(measurement, mean=measurement.mean + edge)
        yield no_effect_outcomes(shifted, MARGIN)
        if papers is not None:
            yield value_outcomes(
                shifted, PrintedReference(papers, 0.005, PAPER_N, measurement.draws or 1, False), MARGIN
            )


# Prompts: values without bounds, and prompts that share words


def simulate_huge_values(share: float) -> Sampler:
    """Values of mean 0 and spread 1, equal but for a share that is huge."""
    spread = np.sqrt(share * (1 - share))
    return lambda rng, shape: np.where(rng.random(shape) < share, 1 - share, -share) / spread


def simulate_prompts(sampler: Sampler, n: int) -> Simulation:
    """Independent prompts."""

    def simulate(rng: np.random.Generator, count: int) -> Experiments:
        papers = sampler(rng, (count, PAPER_N)).mean(-1).round(2)
        return Experiments(estimate(sampler(rng, (count, n)), unit="prompts"), papers)

    return simulate


WORD_SHARE = 0.25
"""The share of the variance of prompts that lies between words. Declared, nothing is measured of it."""
WORDS = len(Vocabulary().split("evaluation").objects)
"""The objects of controlled prompts."""


def simulate_shared_words(n: int, *, these_words: bool) -> Simulation:
    """Prompts that share words. The true mean is that over these words, or over all words."""

    def simulate(rng: np.random.Generator, count: int) -> Experiments:
        of_word = np.sqrt(WORD_SHARE) * rng.standard_normal((count, WORDS))
        if these_words:
            of_word -= of_word.mean(-1, keepdims=True)

        def measure(size: int) -> Array:
            words = rng.integers(WORDS, size=(count, size))
            rest = np.sqrt(1 - WORD_SHARE) * rng.standard_normal((count, size))
            return np.asarray(np.take_along_axis(of_word, words, axis=-1) + rest)

        return Experiments(estimate(measure(n), unit="prompts"), measure(PAPER_N).mean(-1).round(2))

    return simulate


# Sets of directions crossed with prompts

CROSSED_PROMPTS, DIRECTION_PROMPTS = 180, 100
"""Prompts of a controlled row, and prompts that a set of directions is the mean of."""
ALONE = 1.0, 0.01
"""Spreads between sets and between prompts, if all but the sets hardly matter."""


def spread_as_declared(mean: float) -> tuple[float, float]:
    """Spreads between sets and between prompts, by the mean (`worlds.toml`), with the latter as the unit."""
    set_share, effect, least = (declared()["spread"][name]["value"] for name in ("set", "effect", "least"))
    return float(set_share * max(abs(mean), least) / max(effect * abs(mean), least)), 1.0


def simulate_sets(sampler: Sampler, spreads: tuple[float, float], sets: int) -> Simulation:
    """Sets that each move all prompts. The true mean is that over all directions. No paper prints several sets."""

    def simulate(rng: np.random.Generator, count: int) -> Experiments:
        of_set = spreads[0] * sampler(rng, (count, sets, 1))
        of_prompt = spreads[1] * rng.standard_normal((count, 1, CROSSED_PROMPTS))
        return Experiments(estimate(of_set + of_prompt, unit="nested"))

    return simulate


def average_long_tails(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Means over as many very skewed numbers as a set of directions has prompts, scaled to spread 1."""
    values = SAMPLERS["very skewed"](rng, (*shape, DIRECTION_PROMPTS))
    return np.asarray(values.mean(-1) * np.sqrt(DIRECTION_PROMPTS))


# One set of directions that all prompts share

BATCHES = 10
"""Batches of the prompts that a set of directions is the mean of; runs leave them out one at a time."""


def simulate_one_set(mean: float, *, these_directions: bool) -> Simulation:
    """A published row and its paper: with the same directions, whose mean is the true one, or each with its own."""
    spread = 0.0 if these_directions else spread_as_declared(mean)[0]

    def simulate(rng: np.random.Generator, count: int) -> Experiments:
        of_set = spread * rng.standard_normal((2, count, 1))
        ours, paper = of_set + rng.standard_normal((2, count, PAPER_N))
        return Experiments(estimate(ours, unit="prompts"), paper.mean(-1).round(2))

    return simulate


def simulate_jackknife(mean: float) -> Simulation:
    """One set, and runs without each of its batches: pseudo-values of batches, crossed with prompts."""
    spread = spread_as_declared(mean)[0] * np.sqrt(BATCHES)

    def simulate(rng: np.random.Generator, count: int) -> Experiments:
        ours, paper = spread * rng.standard_normal((2, count, BATCHES, 1))
        prompts, prompts_of_paper = rng.standard_normal((2, count, 1, PAPER_N))
        complete = ours.mean(1, keepdims=True)  # (count, 1, 1)
        left_out = (BATCHES * complete - ours) / (BATCHES - 1)  # (count, batch, 1): means of the other batches
        pseudo = BATCHES * (complete + prompts) - (BATCHES - 1) * (left_out + prompts)  # (count, batch, prompt)
        return Experiments(estimate(pseudo, unit="nested"), (paper + prompts_of_paper).mean((1, 2)).round(2))

    return simulate


def interval_length(simulation: Simulation) -> float:
    """The median length of an interval at 90 %, in spreads between prompts."""
    low, high = simulation(np.random.default_rng(BLOCK), BLOCK).measurement.safe_bounds(0.90)
    return float(np.median(high - low))


def compare_lengths(row: Callable[[float], Simulation]) -> str:
    """How much longer the intervals of a row are than those of a published row."""
    published = partial(simulate_one_set, these_directions=True)
    ratios = [interval_length(row(mean)) / interval_length(published(mean)) for mean in MEANS.values()]
    return f"{min(ratios):.1f} to {max(ratios):.1f} times as long"


# Tables

SIZES = (8, 16, 24, 48, 100, 300)
SETS = (5, 6, 8, 10, 20)
MEANS = {"mean up to 0.5": 0.5, "mean of 1 or more": 1.0}


def simulate_controlled(mean: float) -> Simulation:
    """A controlled row, with spreads as declared."""
    return simulate_sets(SAMPLERS["normal"], spread_as_declared(mean), 10)


PROMPTS: Mapping[str, Callable[[int], Simulation]] = {
    "one value in ten is huge": partial(simulate_prompts, simulate_huge_values(0.1)),
    "one value in thirty is huge": partial(simulate_prompts, simulate_huge_values(1 / 30)),
    "skewed": partial(simulate_prompts, SAMPLERS["skewed"]),
    "very skewed": partial(simulate_prompts, SAMPLERS["very skewed"]),
    "shared words, about these words": partial(simulate_shared_words, these_words=True),
    "shared words, about all words": partial(simulate_shared_words, these_words=False),
}
CROSSED: Mapping[str, Callable[[int], Simulation]] = {
    "normal": partial(simulate_sets, SAMPLERS["normal"], ALONE),
    "skewed": partial(simulate_sets, SAMPLERS["skewed"], ALONE),
    "skewed, as declared": partial(simulate_sets, SAMPLERS["skewed"], spread_as_declared(1.0)),
    "very skewed": partial(simulate_sets, SAMPLERS["very skewed"], ALONE),
    "very skewed, as declared": partial(simulate_sets, SAMPLERS["very skewed"], spread_as_declared(1.0)),
    "means of 100 very skewed": partial(simulate_sets, average_long_tails, ALONE),
}
ROWS: Mapping[str, Callable[[float], Simulation]] = {
    "published, about these directions": partial(simulate_one_set, these_directions=True),
    "published, about all directions": partial(simulate_one_set, these_directions=False),
    "published, batches left out, about all directions": simulate_jackknife,
    "controlled, about all directions": simulate_controlled,
}


@dataclass(frozen=True)
class Table:
    """Error rates by what was sampled (rows) and how much of it (columns). Each cell is a simulation."""

    head: str
    columns: Sequence[str]
    rows: Mapping[str, Sequence[Simulation]]

    def lines(self) -> Iterator[str]:
        """Markdown, in per cent."""
        yield f"| {self.head} | {' | '.join(self.columns)} |"
        yield "|---|" + "---|" * len(self.columns)
        for name, cells in self.rows.items():
            yield f"| {name} | {' | '.join(f'{100 * worst_error(cell):.1f}' for cell in cells)} |"


TABLES = (
    Table("prompts", [f"N = {n}" for n in SIZES], {name: [row(n) for n in SIZES] for name, row in PROMPTS.items()}),
    Table("sets", [f"{n} sets" for n in SETS], {name: [row(n) for n in SETS] for name, row in CROSSED.items()}),
    Table("rows", [*MEANS], {name: [row(mean) for mean in MEANS.values()] for name, row in ROWS.items()}),
)

if __name__ == "__main__":
    for table in TABLES:
        print(*table.lines(), sep="\n", end="\n\n", flush=True)
    print("Leaving out batches:", compare_lengths(simulate_jackknife))
    print("Controlled:", compare_lengths(simulate_controlled))
