"""Exact values of the rules, compared with formulas written out here; no simulation of thousands would show them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
from scipy import stats

from rebinding.paper.claim import Unit
from rebinding.paper.numbers import number
from rebinding.verdicts import Verdict, effect, ordering, overlap, value, value_unidentified
from rebinding.verdicts.effects import effect_outcomes, no_effect_outcomes
from rebinding.verdicts.estimates import FEWEST_UNITS, estimate, wilson
from rebinding.verdicts.gates import equal_lengths
from rebinding.verdicts.outcome import MOST_UNITS, POWER, SIZES, needed_units
from rebinding.verdicts.sentences import Part, all_of, most_of
from rebinding.verdicts.values import _reference

VALUES = np.array([0.3, 1.4, 0.8, 2.9, 0.1, 0.7, 1.1])
LEVEL = 0.05
UNITS: tuple[Unit, Unit] = ("prompts", "circuit draws")


def test_the_interval_is_of_two_one_sided_tests() -> None:
    """90 % where 5 % may err on either side."""
    result, plain = effect(VALUES, margin=0.1), estimate(VALUES, unit="prompts")
    assert (result.low, result.high) == pytest.approx([float(bound) for bound in plain.safe_bounds(1 - 2 * LEVEL)])
    assert (result.low, result.high) != pytest.approx([float(bound) for bound in plain.safe_bounds(1 - LEVEL)])


def test_skewness_is_that_of_the_sample() -> None:
    """Third moment over the cube of the spread, both with n below: as scipy has it."""
    assert float(estimate(VALUES, unit="prompts").skew) == pytest.approx(stats.skew(VALUES))


def test_outcomes_spread_as_two_more_of_each_would() -> None:
    share = (3 + 2) / (5 + 4)
    assert float(estimate(np.array([True, True, False, True, False]), unit="prompts").unit_var) == pytest.approx(
        share * (1 - share)
    )


def test_a_difference_of_hits_can_be_a_loss() -> None:
    """Six prompts alike leave room for some on which the first fails and the second does not."""
    hits = np.zeros(6, dtype=bool)
    unseen = 1 - LEVEL ** (1 / 6)
    result = ordering(hits, hits, margin=0.1)
    assert (result.low, result.high) == pytest.approx((-unseen, unseen))


def note_levels(levels: list[float], p_value: float = 0.9) -> Part:
    def part(*, level: float) -> Verdict:
        levels.append(level)
        return Verdict("effect", "INCONCLUSIVE", "", p_value=p_value)

    return part


def test_most_of_judges_parts_at_a_share_of_the_level() -> None:
    """Four of five: they hold if one of the last two errs, and fail if one of four does."""
    levels: list[float] = []
    most_of("effect", {str(number): note_levels(levels) for number in range(5)}, 0.8)
    assert levels == pytest.approx([LEVEL / 2] * 5 + [LEVEL / 4] * 5)


def test_a_p_value_is_at_most_1() -> None:
    assert all_of("effect", {"a": note_levels([]), "b": note_levels([])}).p_value == 1.0


def test_prompts_of_unequal_number_are_no_pairs() -> None:
    """Also where every one of the first is as long as the only one of the second."""
    assert not equal_lengths([3, 3], [3]).passed
    assert not equal_lengths([3], [3, 3]).passed


def test_a_verdict_is_frozen() -> None:
    result = effect(VALUES, margin=0.1)
    change: Callable[..., None] = setattr
    with pytest.raises(FrozenInstanceError):
        change(result, "outcome", "REPLICATED")


def test_degrees_of_freedom_follow_n() -> None:
    assert estimate(VALUES, unit="prompts").with_n(np.array([20.0, 50.0])).df.tolist() == [19, 49]


def test_single_run_is_compared_with_draws_on_both_sides() -> None:
    draws = np.array([VALUES, VALUES + 0.1, VALUES - 0.2])
    result: list[Any] = [
        ordering(*samples, margin=0.1, unit="nested") for samples in ((VALUES, draws), (draws, VALUES))
    ]
    first, second = result
    assert (first.measured, second.measured) == pytest.approx((0.1 / 3, -0.1 / 3))
    assert (first.low, first.high) == pytest.approx((-second.high, -second.low))


def test_the_nearest_candidate_is_the_least_surprising() -> None:
    paper = number("binding.q.dR@gemma2-9b")
    result = {str(offset): value(paper.value + offset + VALUES - VALUES.mean(), paper) for offset in (5.0, 2.0, 9.0)}
    assert [verdict.outcome for verdict in result.values()] == ["NOT REPLICATED"] * 3
    assert value_unidentified(result).measured == pytest.approx(paper.value + 2.0)


def test_a_printed_share_is_binomial_where_prompts_are_drawn() -> None:
    """Its own spread is that of so many coins; that of a mean over draws is as ours."""
    share = number("accuracy.circuit@gemma2-9b")
    sample = estimate(np.array([0.8, 0.9, 0.7, 0.85, 0.95]), unit="circuit draws")
    coins, draws = (_reference(share, unit, 300, 10) for unit in UNITS)
    assert (coins.binomial, draws.binomial) == (True, False)
    assert np.allclose(coins.bounds(sample, 0.9), wilson(share.value, 300, 0.9))


def test_a_share_of_prompts_cannot_leave_its_range() -> None:
    """Ten alike leave room for a share of prompts not met, of what lies between nothing and everything."""
    share, alike = number("accuracy.circuit@gemma2-9b"), np.full(10, 0.9)
    prompts, draws = (value(alike, share, unit=unit, paper_draws=10) for unit in UNITS)
    unseen = 0.9 * (1 - LEVEL ** (1 / 10))
    assert prompts.low is not None
    assert draws.low is not None
    assert prompts.low < 0.9 - unseen < draws.low


def test_a_reason_says_both_ends_of_the_difference() -> None:
    paper = number("binding.q.dR@gemma2-9b")
    result = value(paper.value + VALUES - VALUES.mean(), paper)
    assert result.low is not None
    assert result.high is not None
    low, high = (f"{bound - paper.value:.3g}" for bound in (result.low, result.high))
    assert low != high
    assert f"difference in [{low}, {high}]" in result.reason


def test_an_empty_repetition_shares_nothing() -> None:
    result = overlap("ab", "ab", universe=40, repetitions=[("ab", "ab"), ("ab", "")])
    assert (result.low, result.high) == (0.0, 1.0)


@pytest.mark.parametrize(("selected", "published", "empty"), [("", "ab", "our"), ("ab", "", "the published")])
def test_the_error_names_the_empty_selection(selected: str, published: str, empty: str) -> None:
    with pytest.raises(ValueError, match=f"^{empty} selection is empty"):
        overlap(selected, published, universe=40, repetitions=[])


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
def test_larger_sizes_decide_too(rule: Callable[..., Any], seed: int) -> None:
    """By rules as they are, so that few need be looked at."""
    chance = np.random.default_rng(seed)
    pilot = estimate(chance.normal(chance.uniform(-1, 1), chance.uniform(0.1, 4), 9), unit="prompts")
    reach = float(stats.norm.ppf((1 + POWER) / 2))
    sizes = np.geomspace(10, MOST_UNITS, len(SIZES)).round()
    lower, upper = (rule(pilot.with_n(sizes, shift), 0.5, LEVEL, 0.0) for shift in (-reach, reach))
    settled = (lower == upper) & (lower != "INCONCLUSIVE")
    assert (np.diff(settled.astype(int)) >= 0).all()
