"""Estimates, intervals and needed sizes against libraries, analytic truth, and formulas written out here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.proportion import confint_proportions_2indep, proportion_confint

from rebinding.paper.numbers import number
from rebinding.verdicts import value
from rebinding.verdicts.effects import effect_outcomes, no_effect_outcomes
from rebinding.verdicts.estimates import FEWEST_UNITS, clopper_pearson, estimate, wilson
from rebinding.verdicts.outcome import MOST_UNITS, POWER, SIZES, needed_units
from rebinding.verdicts.values import PrintedReference, _reference, difference

RNG = np.random.default_rng(20)
SYMMETRIC = np.array([-3.0, -1.0, 0.0, 1.0, 3.0])
VALUES = np.array([0.3, 1.4, 0.8, 2.9, 0.1, 0.7, 1.1])
SHARE = number("accuracy.circuit@gemma2-9b")
LEVEL = 0.05


def test_symmetric_samples_get_students_interval_and_single_examples_none() -> None:
    expected = stats.ttest_1samp(SYMMETRIC + 7, 0).confidence_interval(0.9)
    assert estimate(SYMMETRIC + 7, unit="prompts").bounds(0.9) == pytest.approx((expected.low, expected.high), rel=1e-9)
    assert estimate([1.0], unit="prompts").bounds(0.9) == (-np.inf, np.inf)


def test_a_long_tail_lengthens_its_own_side_only() -> None:
    """Skewness is the third moment over the cube of the spread, both with n below: as scipy has it."""
    values = RNG.exponential(1, 40)
    low, high = estimate(values, unit="prompts").bounds(0.9)
    student = stats.ttest_1samp(values, 0).confidence_interval(0.9)
    assert high > student.high + 0.01
    assert low == pytest.approx(student.low, rel=1e-9)
    assert float(estimate(VALUES, unit="prompts").skew) == pytest.approx(stats.skew(VALUES))


def test_booleans_get_wilson_and_the_safe_interval_contains_the_exact_one() -> None:
    measurement = estimate(np.arange(45) < 1, unit="prompts")
    assert measurement.bounds(0.9) == pytest.approx(proportion_confint(1, 45, alpha=0.1, method="wilson"))
    exact = proportion_confint(1, 45, alpha=0.1, method="beta")
    low, high = measurement.safe_bounds(0.9)
    assert low <= exact[0] + 1e-12  # two computations of one number in float64
    assert high >= exact[1] - 1e-12


@pytest.mark.parametrize("level", [0.5, 0.9, 0.998])
@pytest.mark.parametrize("n", [1, 5, 72, 10**6])
def test_intervals_of_proportions_are_those_of_statsmodels(n: int, level: float) -> None:
    """Also of counts that are no whole numbers: those of prompts times draws. Both compute in float64."""
    counts = np.unique([*np.linspace(0, n, 37), 1, n - 1])
    exact = proportion_confint(counts, n, alpha=1 - level, method="beta")
    assert clopper_pearson(counts, n, level) == pytest.approx(np.array(exact), abs=1e-12)
    score = proportion_confint(counts, n, alpha=1 - level, method="wilson")
    assert wilson(counts / n, n, level) == pytest.approx(np.array(score), abs=1e-12)


def test_hits_spread_as_two_more_of_each_outcome_would() -> None:
    share = (3 + 2) / (5 + 4)
    spread = estimate(np.array([True, True, False, True, False]), unit="prompts").unit_var
    assert float(spread) == pytest.approx(share * (1 - share))


@pytest.mark.parametrize(("hits", "paper"), [(267, 260), (3, 10), (300, 300)])
def test_difference_of_proportions_contains_newcombes(hits: int, paper: int) -> None:
    """Ours is the exact interval where Wilson's is shorter."""
    reference = PrintedReference(paper / 300, half_width=0.0, n=300, draws=1, binomial=True)
    actual = difference(estimate(np.arange(300) < hits, unit="prompts"), reference, 0.9)
    expected = confint_proportions_2indep(hits, 300, paper, 300, method="newcomb", compare="diff", alpha=0.1)
    assert expected[0] - 0.01 < actual[0] <= expected[0] + 1e-12
    assert expected[1] - 1e-12 <= actual[1] < expected[1] + 0.01


def test_difference_of_means_adds_both_errors_and_the_rounding() -> None:
    measurement = estimate(SYMMETRIC, unit="prompts")
    low, high = difference(measurement, PrintedReference(0.5, half_width=0.05, n=20, draws=1, binomial=False), 0.95)
    error = SYMMETRIC.std(ddof=1) * np.sqrt(1 / 5 + 1 / 20)
    half = stats.t.ppf(0.975, 4) * error + 0.05
    assert (float(low), float(high)) == pytest.approx((-0.5 - half, -0.5 + half))


def test_a_printed_share_is_binomial_where_prompts_are_drawn() -> None:
    """Its own spread is that of so many coins; that of a mean over draws is as ours."""
    sample = estimate(np.array([0.8, 0.9, 0.7, 0.85, 0.95]), unit="circuit draws")
    coins, draws = (_reference(SHARE, unit, 300, 10) for unit in ("prompts", "circuit draws"))
    assert (coins.binomial, draws.binomial) == (True, False)
    assert np.allclose(coins.bounds(sample, 0.9), wilson(SHARE.value, 300, 0.9))


def test_a_share_of_prompts_cannot_leave_its_range() -> None:
    """Ten alike leave room for a share of prompts not met, of what lies between nothing and everything."""
    alike = np.full(10, 0.9)
    prompts, draws = (value(alike, SHARE, unit=unit, paper_draws=10) for unit in ("prompts", "circuit draws"))
    unseen = 0.9 * (1 - LEVEL ** (1 / 10))
    assert prompts.low < 0.9 - unseen < draws.low


@pytest.mark.parametrize(("draws", "prompts"), [(2, 3), (4, 2), (5, 6)])
def test_crossed_draws_and_prompts_by_sums_one_by_one(draws: int, prompts: int) -> None:
    """Mean squares, Satterthwaite's degrees of freedom and the third moment as a textbook writes them; two of a kind
    are enough, and a component below 0 is nothing."""
    rng = np.random.default_rng(4)
    cells = 3 * rng.normal(size=(draws, 1)) ** 3 + 3 * rng.normal(size=prompts) ** 3 + rng.normal(size=(draws, prompts))
    mean = sum(cells[d, p] for d in range(draws) for p in range(prompts)) / (draws * prompts)
    rows = [sum(cells[d]) / prompts - mean for d in range(draws)]
    columns = [sum(cells[:, p]) / draws - mean for p in range(prompts)]
    rest = sum((cells[d, p] - mean - rows[d] - columns[p]) ** 2 for d in range(draws) for p in range(prompts))
    squares = [prompts * sum(x**2 for x in rows), draws * sum(x**2 for x in columns), rest]
    freedom = [draws - 1, prompts - 1, (draws - 1) * (prompts - 1)]
    by_row, by_column, rest = (total / free for total, free in zip(squares, freedom, strict=True))
    total = max(by_row - rest, 0) + max(by_column - rest, 0) + rest
    scatter = by_row**2 / freedom[0] + by_column**2 / freedom[1] + rest**2 / freedom[2]
    third = sum(x**3 for x in rows) / draws**3 + sum(x**3 for x in columns) / prompts**3

    result = estimate(cells, unit="nested")
    assert result.mean == pytest.approx(mean)
    assert result.se**2 == pytest.approx(total / (draws * prompts))
    assert result.df == pytest.approx(total**2 / scatter)
    assert result.skew == pytest.approx(np.sqrt(prompts) * third / (total / (draws * prompts)) ** 1.5)


def test_impossible_samples_are_refused_with_what_is_wanted() -> None:
    for values, unit, message in (
        ([], "circuit draws", r"shape \(0,\), expected one number per unit \(circuit draws\)"),
        ([1.0, 2.0], "nested", r"expected \(draws, prompts\)"),
        (VALUES, "heads", "unknown unit 'heads'; give one of prompts, circuit draws"),
    ):
        with pytest.raises(ValueError, match=message):
            estimate(values, unit=unit)


# The size that decides


def test_degrees_of_freedom_follow_n() -> None:
    assert estimate(VALUES, unit="prompts").with_n(np.array([20.0, 50.0])).df.tolist() == [19, 49]


def test_the_size_that_decides_is_the_first_of_all_sizes() -> None:
    """Few are looked at, and none is passed over, wherever it stands."""
    pilot = estimate(VALUES, unit="prompts")
    assert (len(SIZES), SIZES[0], SIZES[-1]) == (len(np.unique(SIZES)), FEWEST_UNITS, MOST_UNITS)
    sizes = SIZES[len(VALUES) < SIZES]

    def result(first: float) -> int | None:
        return needed_units(lambda second: np.where(second.n >= first, "REPLICATED", "INCONCLUSIVE"), pilot)

    assert [result(size) for size in sizes] == sizes.tolist()
    assert result(MOST_UNITS + 1) is None


@pytest.mark.parametrize("rule", [effect_outcomes, no_effect_outcomes])
@pytest.mark.parametrize("seed", range(8))
def test_larger_sizes_decide_too(rule: Any, seed: int) -> None:
    """By rules as they are, so that few need be looked at."""
    chance = np.random.default_rng(seed)
    pilot = estimate(chance.normal(chance.uniform(-1, 1), chance.uniform(0.1, 4), 9), unit="prompts")
    reach = float(stats.norm.ppf((1 + POWER) / 2))
    sizes = np.geomspace(10, MOST_UNITS, len(SIZES)).round()
    lower, upper = (rule(pilot.with_n(sizes, shift), 0.5, LEVEL, 0.0) for shift in (-reach, reach))
    settled = (lower == upper) & (lower != "INCONCLUSIVE")
    assert (np.diff(settled.astype(int)) >= 0).all()
