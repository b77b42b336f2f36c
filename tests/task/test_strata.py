"""What a design fixes is not chance: strata, and the spread that is left within them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rebinding.task.designs import design
from rebinding.task.prompts import numbered, spread, stratum

DICE = np.random.default_rng(0)


def test_a_balanced_block_meets_every_stratum_equally_often() -> None:
    prompts = [design("counterbalanced").prompt(number) for number in range(36)]
    counts = np.bincount(numbered([stratum(prompt) for prompt in prompts]))
    assert counts.tolist() == [2] * 12 + [4] * 3  # a bystander has no place in the order of naming
    fixed = [design("published").prompt(number) for number in range(9)]
    assert {stratum(prompt) for prompt in fixed} == {(1, 1, 0)}  # the partner is named first


def test_coarser_where_there_are_few() -> None:
    """At most half of the degrees of freedom: the asked box's slot goes first, the order of naming last."""
    fine = [
        (place, answer, query) for place in range(2) for answer in range(3) for query in range(3) if answer != query
    ]
    assert len(set(numbered(fine * 2))) == 12
    assert len(set(numbered(fine))) == 6
    assert numbered(fine[::3]) == [0, 0, 1, 1]
    assert numbered(fine[:1]) == [0]
    assert numbered([]) == []


def test_single_stratum_gives_the_usual_standard_error() -> None:
    values = DICE.normal(size=(20, 3))
    actual = spread(values, [0] * 20)
    assert actual.error == pytest.approx(stats.sem(values), rel=1e-12)  # sums of 20 numbers in float64
    assert actual.freedom == 19


def test_regression_on_strata_has_the_same_error() -> None:
    """Of equally large strata: the intercept of least squares on centred indicators, written apart."""
    strata = np.repeat(range(4), 6)
    values = DICE.normal(size=24) + 5.0 * strata
    columns = np.stack([(strata == number) - 0.25 for number in range(3)], axis=1)
    basis = np.column_stack([np.ones(24), columns])
    fit, squares, *_ = np.linalg.lstsq(basis, values)
    error = np.sqrt(squares[0] / 20 * np.linalg.inv(basis.T @ basis)[0, 0])
    actual = spread(values, strata.tolist())
    assert (float(actual.mean), float(actual.error), actual.freedom) == pytest.approx((fit[0], error, 20), rel=1e-10)
    assert actual.error < stats.sem(values) / 3
