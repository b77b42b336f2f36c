"""Prompts crossed with sets of directions: the interval covers, also where there are only five sets."""

from __future__ import annotations

import numpy as np
import pytest

from rebinding.verdicts.estimates import Array, estimate
from tests.verdicts.characteristics import REPETITIONS, rate_is_at_most

SETS, PROMPTS = 5, 12
"""Fewer than any row has: ten sets of directions, and twelve units on plants."""
SPREADS = {
    "directions alone": (1.0, 0.0, 0.0),
    "prompts alone": (0.0, 1.0, 0.0),
    "neither": (0.0, 0.0, 1.0),
    "all": (1.0, 1.0, 1.0),
    "directions little": (0.2, 1.0, 1.0),
}
"""Standard deviations between sets, between prompts, and of what is left."""


def experiments(spread: tuple[float, float, float]) -> Array:
    """Many experiments whose true mean is 0: (experiment, set, prompt)."""
    random = np.random.default_rng(7)
    shapes = ((REPETITIONS, SETS, 1), (REPETITIONS, 1, PROMPTS), (REPETITIONS, SETS, PROMPTS))
    parts = [sd * random.standard_normal(shape) for sd, shape in zip(spread, shapes, strict=True)]
    return sum(parts, np.zeros(shapes[-1]))


@pytest.mark.parametrize("spread", SPREADS.values(), ids=SPREADS)
def test_either_bound_misses_at_most_one_time_in_twenty(spread: tuple[float, float, float]) -> None:
    low, high = estimate(experiments(spread), unit="nested").safe_bounds(0.9)
    assert (low > 0).mean() <= rate_is_at_most(0.05)
    assert (high < 0).mean() <= rate_is_at_most(0.05)


def test_prompts_that_share_directions_are_not_independent() -> None:
    """What the crossing is for: with directions taken as known the error is more than twice what is allowed."""
    low, _ = estimate(experiments(SPREADS["all"]).mean(axis=1), unit="prompts").safe_bounds(0.9)
    assert (low > 0).mean() > rate_is_at_most(2 * 0.05)
