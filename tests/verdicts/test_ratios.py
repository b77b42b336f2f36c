"""The interval of a ratio holds the true one as often as it says, and is that of equal means where the ratio is 1."""

from __future__ import annotations

import numpy as np
import pytest

from rebinding.verdicts import ratio

N, RUNS = 200, 400


@pytest.mark.slow
def test_an_end_errs_as_often_as_it_says() -> None:
    """0.72 of the prompts against 0.9 of them: 0.8. Four standard errors of the count are allowed."""
    generator = np.random.default_rng(0)
    ends = []
    for _ in range(RUNS):
        denominator = generator.random(N) < 0.9
        ends.append(ratio(generator.random(N) < 0.72, denominator))
    counts = [sum(end.low > 0.8 for end in ends), sum(end.high is not None and end.high < 0.8 for end in ends)]
    assert max(counts) <= RUNS * 0.05 + 4 * (RUNS * 0.05 * 0.95) ** 0.5
    assert min(counts) > 0


def test_equal_hits_leave_room_for_prompts_that_were_not_met() -> None:
    """A share q of other prompts, with (1 - q)^N = 5 %: the ratio is between 1 - q and 1 / (1 - q)."""
    result, q = ratio(np.ones(N), np.ones(N)), 1 - 0.05 ** (1 / N)
    assert (result.value, result.low, result.high) == pytest.approx((1.0, 1 - q, 1 / (1 - q)))


def test_nothing_is_a_share_of_nothing() -> None:
    result = ratio(np.zeros(N), np.zeros(N))
    assert (result.value, result.high) == (None, None)


def test_both_means_are_of_the_same_prompts() -> None:
    with pytest.raises(ValueError, match=r"shapes \(3,\) and \(4,\)"):
        ratio(np.ones(3), np.ones(4))
