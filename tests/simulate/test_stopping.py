"""The stopping rule of a row, the interval of its share, and the N that it would need."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from rebinding.simulate.rates import interval, is_settled, looks, n_for_power, sufficient_n
from rebinding.verdicts import Verdict


@pytest.mark.parametrize(
    ("runs", "expected"), [(1, (1,)), (25, (25,)), (26, (25, 26)), (50, (25, 50)), (200, (25, 50, 100, 200))]
)
def test_looks_double_and_end_with_the_last_sample(runs: int, expected: tuple[int, ...]) -> None:
    assert looks(runs) == expected


def test_the_interval_of_a_single_look_is_that_of_clopper_and_pearson() -> None:
    """Its ends are known in closed form where all or none of the runs come out right: 0.025^(1/n)."""
    low, high = interval(20, 20)
    assert (low, high) == (pytest.approx(0.025 ** (1 / 20)), 1.0)
    assert interval(0, 20)[1] == pytest.approx(1 - 0.025 ** (1 / 20))
    assert interval(0, 0) == (0.0, 1.0)


def test_more_looks_make_wider_intervals() -> None:
    single, four = interval(45, 50), interval(45, 50, n_looks=4)
    assert four[0] < single[0] < 0.9 < single[1] < four[1]


@pytest.mark.parametrize(
    ("count", "runs", "target", "settled"),
    [
        (25, 25, 0.8, True),
        (24, 25, 0.8, False),
        (25, 25, 0.9, False),
        (50, 50, 0.9, True),
        (0, 25, 0.8, True),
        (20, 25, 0.8, False),
        (26, 26, 0.8, False),  # no look after so many
        (160, 200, 0.8, True),  # the last one
    ],
)
def test_a_row_ends_at_a_look_at_which_its_share_is_sure(count: int, runs: int, target: float, settled: bool) -> None:
    assert is_settled(count, runs, planned=200, target=target) == settled


@pytest.mark.parametrize("share", [0.6, 0.8, 0.9])
def test_the_true_share_is_within_the_interval_of_the_look_that_ended_a_row(share: float) -> None:
    """Of 2000 rows with a known share at most 5 % may miss it: 100, and 4 standard errors more by luck."""
    dice, n_missed = np.random.default_rng(5), 0
    for _ in range(2000):
        right = np.cumsum(dice.random(200) < share)
        ends = next(n for n in looks(200) if is_settled(int(right[n - 1]), n, 200, 0.8))
        low, high = interval(int(right[ends - 1]), ends, len(looks(200)))
        n_missed += not low <= share <= high
    assert n_missed <= 100 + 4 * np.sqrt(2000 * 0.05 * 0.95)


def test_what_suffices_in_a_run() -> None:
    assert sufficient_n(Verdict("effect", "REPLICATED", ""), 300) == 300
    assert sufficient_n(Verdict("effect", "INCONCLUSIVE", "", needed_n=700), 300) == 700
    assert sufficient_n(Verdict("effect", "INCONCLUSIVE", ""), 300) is None
    assert sufficient_n(Verdict("value", "INCONCLUSIVE", "", needed_n=700, unidentified=True), 300) is None
    assert sufficient_n(Verdict("effect", "NOT REPLICATED", ""), 300) is None


@pytest.mark.parametrize(
    ("sufficient", "outcomes", "expected"),
    [
        ([300] * 4 + [900], {"REPLICATED": 4, "INCONCLUSIVE": 1}, 300),
        ([300] * 2 + [500, 700, 900], {"REPLICATED": 2, "INCONCLUSIVE": 3}, 700),
        ([300] * 3 + [None, None], {"REPLICATED": 3, "INCONCLUSIVE": 2}, None),
        ([500] * 9 + [None], {"INCONCLUSIVE": 9, "NOT REPLICATED": 1}, None),
        ([], {}, None),
    ],
)
def test_four_of_five_runs_must_have_enough(
    sufficient: list[int | None], outcomes: dict[str, int], expected: int | None
) -> None:
    assert n_for_power(sufficient, Counter(outcomes)) == expected
