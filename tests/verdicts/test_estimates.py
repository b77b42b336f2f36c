"""Estimates and intervals against libraries and analytic truth."""

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.proportion import confint_proportions_2indep, proportion_confint

from rebinding.verdicts.estimates import estimate
from rebinding.verdicts.values import PrintedReference, difference

RNG = np.random.default_rng(20)


def test_symmetric_samples_get_students_interval():
    values = np.array([-3.0, -1.0, 0.0, 1.0, 3.0]) + 7
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.9)
    assert estimate(values, unit="prompts").bounds(0.9) == pytest.approx((expected.low, expected.high), rel=1e-9)


def test_a_long_tail_lengthens_its_own_side_only():
    values = RNG.exponential(1, 40)
    low, high = estimate(values, unit="prompts").bounds(0.9)
    student = stats.ttest_1samp(values, 0).confidence_interval(0.9)
    assert high > student.high + 0.01
    assert low == pytest.approx(student.low, rel=1e-9)


def test_booleans_get_wilson_and_the_safe_interval_contains_the_exact_one():
    measurement = estimate(np.arange(45) < 1, unit="prompts")
    assert measurement.bounds(0.9) == pytest.approx(proportion_confint(1, 45, alpha=0.1, method="wilson"))
    exact = proportion_confint(1, 45, alpha=0.1, method="beta")
    low, high = measurement.safe_bounds(0.9)
    assert low <= exact[0]
    assert high >= exact[1]


@pytest.mark.parametrize(("hits", "paper"), [(267, 260), (300, 290), (3, 10), (300, 300)])
def test_difference_of_proportions_contains_newcombes(hits, paper):
    """Ours is the exact interval where Wilson's is shorter."""
    reference = PrintedReference(paper / 300, half_width=0.0, n=300, draws=1, binomial=True)
    actual = difference(estimate(np.arange(300) < hits, unit="prompts"), reference, 0.9)
    expected = confint_proportions_2indep(hits, 300, paper, 300, method="newcomb", compare="diff", alpha=0.1)
    assert expected[0] - 0.01 < actual[0] <= expected[0] + 1e-12
    assert expected[1] - 1e-12 <= actual[1] < expected[1] + 0.01


def test_difference_of_means_adds_both_errors_and_the_rounding():
    values = np.array([-3.0, -1.0, 0.0, 1.0, 3.0])
    measurement = estimate(values, unit="prompts")
    low, high = difference(measurement, PrintedReference(0.5, half_width=0.05, n=20, draws=1, binomial=False), 0.95)
    error = values.std(ddof=1) * np.sqrt(1 / 5 + 1 / 20)
    half = stats.t.ppf(0.975, 4) * error + 0.05
    assert (float(low), float(high)) == pytest.approx((-0.5 - half, -0.5 + half))


def test_nested_components_are_recovered():
    draws, prompts = 400, 400
    sample = RNG.normal(0, 2, (draws, 1)) + RNG.normal(0, 1, (1, prompts)) + RNG.normal(0, 3, (draws, prompts))
    measurement = estimate(sample, unit="nested")
    relative = 5 * np.sqrt(2 / (draws - 1))  # five standard errors of an estimated variance
    assert measurement.draw_var == pytest.approx(4, rel=relative)
    assert measurement.unit_var == pytest.approx(1, rel=relative)
    assert measurement.rest_var == pytest.approx(9, rel=5 * np.sqrt(2 / (draws * prompts)))
    assert measurement.se**2 == pytest.approx(4 / draws + 1 / prompts + 9 / (draws * prompts), rel=relative)


def test_fresh_prompts_per_draw_reduce_to_the_spread_of_the_draw_means():
    """With draws as the only common cause, the nested standard error is that of the mean of the draws' means."""
    sample = RNG.normal(0, 1, (50, 1)) * np.ones((1, 30))
    measurement = estimate(sample, unit="nested")
    assert measurement.se == pytest.approx(stats.sem(sample.mean(1)), rel=1e-9)
    assert measurement.df == pytest.approx(49)


def test_single_example_has_no_interval():
    low, high = estimate([1.0], unit="prompts").bounds(0.9)
    assert (low, high) == (-np.inf, np.inf)


def test_shapes_are_refused_with_what_is_wanted():
    with pytest.raises(ValueError, match=r"shape \(0,\), expected one number per unit \(circuit draws\)"):
        estimate([], unit="circuit draws")
    with pytest.raises(ValueError, match=r"expected \(draws, prompts\)"):
        estimate([1.0, 2.0], unit="nested")


@pytest.mark.parametrize(("draws", "prompts"), [(2, 3), (4, 2), (5, 6)])
def test_crossed_draws_and_prompts_by_sums_one_by_one(draws, prompts):
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
