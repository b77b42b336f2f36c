"""What rules decide, over true values from -3 to 3 margins, N from 5 to 3,000 and data of many kinds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from rebinding.verdicts.effects import effect_outcomes, no_effect_outcomes
from rebinding.verdicts.estimates import estimate
from tests.verdicts.characteristics import LEVEL, SAMPLERS, SIZES, SPREADS, TRUTHS, Cell, cells, stated
from tests.verdicts.simulation import FALSE_ALARM, rate_is_at_least, rate_is_at_most, share


@dataclass(frozen=True)
class Size:
    """How large a simulation is."""

    repetitions: int
    sizes: tuple[int, ...]
    truths: tuple[float, ...]
    spreads: tuple[float, ...]


SMALL = Size(1500, (5, 30, 300), (-1.5, -1.0, 0.5, 1.0, 1.5), (0.3, 30.0))
FULL = Size(5000, SIZES, tuple(TRUTHS), SPREADS)
SIZED = pytest.mark.parametrize("size", [SMALL, pytest.param(FULL, marks=pytest.mark.slow)], ids=["small", "full"])


@cache
def simulated(sampler: str, size: Size) -> Sequence[Cell]:
    return [cell for n in size.sizes for cell in cells(sampler, n, size.repetitions, size.truths, size.spreads)]


@SIZED
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_wrong_decisions_stay_below_what_is_stated(sampler: str, size: Size) -> None:
    """5 %, but for the long tails, whose price is stated. Nothing else can turn REPLICATED into NOT REPLICATED."""
    for cell in simulated(sampler, size):
        assert cell.wrong <= rate_is_at_most(stated(sampler, cell.n), size.repetitions), cell


@SIZED
@pytest.mark.parametrize("sampler", ["normal", "tied", "heavy", "skewed"])
def test_more_data_decide_more_often_and_in_the_same_sense(sampler: str, size: Size) -> None:
    """The share of right decisions never falls by more than two simulated shares may differ by luck."""
    luck = stats.norm.isf(FALSE_ALARM) * np.sqrt(2 * 0.25 / size.repetitions)
    ladders: dict[tuple[str, float, float], list[Cell]] = {}
    for cell in simulated(sampler, size):
        ladders.setdefault((cell.rule, cell.truth, cell.spread), []).append(cell)
    for ladder in ladders.values():
        right = [cell.right for cell in ladder]
        assert all(second >= earlier - luck for earlier, second in pairwise(right)), ladder
        clear = ladder[-1].truth not in (-1.0, 1.0) and ladder[-1].spread <= 1
        assert not clear or right[-1] >= rate_is_at_least(0.95, size.repetitions), ladder[-1]


@pytest.mark.parametrize("n", [*range(5, 60), 300, 1000])
def test_proportions_exactly(n: int) -> None:
    """Hits against chance, by summing the binomial: no luck here. A margin far below the error tries both tails."""
    counts, chance = np.arange(n + 1), 1 / 3
    measurement = estimate(np.tri(n + 1, n, -1, dtype=bool), unit="prompts")  # row k has k hits
    for margin in (0.10, 0.01):
        effect = effect_outcomes(measurement, margin, above=chance)
        none = no_effect_outcomes(measurement, margin, about=chance)
        for truth in chance + margin * np.arange(-3, 3.5, 0.5):
            probabilities = stats.binom.pmf(counts, n, truth)
            excess, distance = round((truth - chance) / margin, 6), round(abs(truth - chance) / margin, 6)
            assert excess > 1 or probabilities[effect == "REPLICATED"].sum() <= LEVEL
            assert excess < 1 or probabilities[effect == "NOT REPLICATED"].sum() <= LEVEL
            assert distance < 1 or probabilities[none == "REPLICATED"].sum() <= LEVEL
            assert distance > 1 or probabilities[none == "NOT REPLICATED"].sum() <= LEVEL


@pytest.mark.parametrize("n", [5, 10, 30, 300])
@pytest.mark.parametrize("mean", [0.05, 0.3, 0.5, 0.95])
def test_shares_of_a_whole(n: int, mean: float) -> None:
    """Attention: mostly near 0 or 1 (a beta distribution of concentration 1), declared to stay within 0 and 1."""
    repetitions = 3000
    values = np.random.default_rng([n, int(100 * mean)]).beta(mean, 1 - mean, (repetitions, n))
    measurement = estimate(values, unit="prompts", support=(0.0, 1.0))
    for margin in (0.02, 0.10):
        at_edge = effect_outcomes(measurement, margin, above=mean - margin)
        lower, upper = (no_effect_outcomes(measurement, margin, about=mean + side * margin) for side in (-1, 1))
        for outcomes in (at_edge, lower, upper):
            for outcome in ("REPLICATED", "NOT REPLICATED"):
                assert share(outcomes, outcome) <= rate_is_at_most(LEVEL, repetitions)
