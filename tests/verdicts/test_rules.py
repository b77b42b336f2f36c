"""Each rule on samples whose verdict is plain, degenerate ones included; its numbers by formulas written out here."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from rebinding.paper.numbers import number, printed_number
from rebinding.verdicts import (
    Verdict,
    effect,
    effect_nowhere,
    effect_somewhere,
    family,
    no_effect,
    not_applicable,
    ordering,
    value,
    value_unidentified,
)
from rebinding.verdicts.estimates import estimate
from tests.verdicts.characteristics import LEVEL, rate_is_at_most

R, N, OPEN = "REPLICATED", "NOT REPLICATED", "INCONCLUSIVE"
SPREAD = np.linspace(-1, 1, 101)
VALUES = np.array([0.3, 1.4, 0.8, 2.9, 0.1, 0.7, 1.1])
SHIFT = printed_number("plant.q.dR", "2.66", kind="dR", source="plant", n=100)
COARSE = printed_number("plant.q.dR", "3", kind="dR", source="plant", n=100)
PERFECT = number("accuracy.full@gemma2-9b")
RANGE = (-2.0, 2.0)
LONG_TAIL = np.append(np.zeros(29), 60.0)

FIFTH, TENTH = {"margin": 0.2}, {"margin": 0.1}
DRAWS, NESTED = FIFTH | {"unit": "circuit draws"}, FIFTH | {"unit": "nested"}


@pytest.mark.parametrize(
    ("rule", "samples", "options", "outcome"),
    [
        (value, (2.66 + SPREAD, SHIFT), {}, R),
        (value, (4.66 + SPREAD, SHIFT), {}, N),
        (value, (2.66 + 2 * SPREAD[::5], SHIFT), {}, OPEN),
        # rounding coarser than the margin can neither earn nor cost a replication
        (value, (np.full(50, 3.0), COARSE), FIFTH, OPEN),
        (value, (np.full(50, 3.4), COARSE), FIFTH, OPEN),
        (value, (np.full(50, 3.8), COARSE), FIFTH, N),
        (value, (np.ones(300, bool), PERFECT), {}, R),
        (value, (np.arange(300) < 240, PERFECT), {}, N),
        (value, (np.ones(5, bool), PERFECT), {}, OPEN),  # five hits also come at an accuracy of 0.6
        # a few wild prompts can neither reject nor earn anything
        (effect, (LONG_TAIL,), FIFTH, OPEN),
        (no_effect, (LONG_TAIL,), FIFTH, OPEN),
        # equal values are decided from five on
        (effect, (np.full(4, 0.7),), FIFTH, OPEN),
        (effect, (np.full(5, 0.7),), FIFTH, R),
        (effect, (np.full(5, -0.7),), FIFTH, N),
        (no_effect, (np.zeros(4),), FIFTH, OPEN),
        (no_effect, (np.zeros(5),), FIFTH, R),
        (no_effect, (np.full(5, 0.7),), FIFTH, N),
        (value, (np.full(4, 2.66), SHIFT), {}, OPEN),
        (value, (np.full(5, 2.66), SHIFT), {}, R),
        (effect, (np.zeros(5),), {"margin": 0.0}, OPEN),  # the boundary itself is on neither side of it
        # fewer than five draws decide nothing
        (effect, (np.ones((4, 30)),), NESTED, OPEN),
        (effect, (np.ones((5, 30)),), NESTED, R),
        (no_effect, (np.zeros((4, 30)),), NESTED, OPEN),
        (no_effect, (np.zeros((5, 30)),), NESTED, R),
        (effect, (np.ones(4),), DRAWS, OPEN),
        (effect, (np.ones(5),), DRAWS, R),
        # equal hits need more, because rare misses hide: 0.9^28 = 5.2 %, 0.9^29 = 4.7 %
        (no_effect, (np.zeros(28, bool),), TENTH, OPEN),
        (no_effect, (np.zeros(29, bool),), TENTH, R),
        (no_effect, (np.zeros(28),), TENTH | {"support": (-1, 1)}, OPEN),
        (no_effect, (np.zeros(29),), TENTH | {"support": (-1, 1)}, R),
        # an ordering pairs the examples
        (ordering, (10 * SPREAD + 0.5, 10 * SPREAD), FIFTH, R),
        (ordering, (10 * SPREAD, 10 * SPREAD + 0.5), FIFTH, N),
        (ordering, (10 * SPREAD + 0.5, np.random.default_rng(30).permutation(10 * SPREAD)), FIFTH, OPEN),
        # and knows hits
        (ordering, (np.ones(9, bool), np.zeros(9, bool)), TENTH, R),
        (ordering, (np.ones(9, bool), np.ones(9, bool)), TENTH, OPEN),
        (ordering, (np.ones(40, bool), np.ones(40, bool)), TENTH, N),
    ],
)
def test_plain_samples_have_a_plain_verdict(
    rule: Callable[..., Verdict], samples: tuple[Any, ...], options: dict[str, Any], outcome: str
) -> None:
    assert rule(*samples, **options).outcome == outcome


def test_an_open_verdict_says_which_size_would_decide_it() -> None:
    """That size is enough, a quarter of it is not, and against a paper with few prompts none is."""
    for verdict in (value(2.66 + 2 * SPREAD[::5], SHIFT), effect(SPREAD[::10] + 0.3, margin=0.1)):
        assert verdict.outcome == OPEN
        assert verdict.needed_n > verdict.n
        assert f"about N = {verdict.needed_n} would decide" in verdict.reason
    needed = value(2.66 + 2 * SPREAD[::5], SHIFT).needed_n
    sample = 2.66 + 2 * np.linspace(-1, 1, needed) * 1.05
    assert value(sample, SHIFT).outcome == R
    assert value(sample[:: needed // 12], SHIFT).outcome == OPEN
    assert effect(np.full(1, 0.7), margin=0.2).needed_n == 5
    vague = printed_number("plant.q.dR", "2.66", kind="dR", source="plant", n=3)
    endless = value(2.66 + 2 * SPREAD, vague)
    assert (endless.outcome, endless.needed_n) == (OPEN, None)
    assert "open for any N" in endless.reason


def test_a_value_reports_an_interval_that_compares_with_paper_and_margin() -> None:
    verdict = value(2.66 + SPREAD, SHIFT)
    assert verdict.measured == pytest.approx(2.66)
    assert SHIFT.value - verdict.margin <= verdict.low < 2.66 < verdict.high <= SHIFT.value + verdict.margin
    assert verdict.n == 101
    paper = number("binding.q.dR@gemma2-9b")
    skewed = value(paper.value + VALUES - VALUES.mean(), paper)
    low, high = (f"{bound - paper.value:.3g}" for bound in (skewed.low, skewed.high))
    assert low != high
    assert f"difference in [{low}, {high}]" in skewed.reason


def test_the_interval_is_of_two_one_sided_tests() -> None:
    """90 % where 5 % may err on either side."""
    result, plain = effect(VALUES, margin=0.1), estimate(VALUES, unit="prompts")
    assert (result.low, result.high) == pytest.approx([float(bound) for bound in plain.safe_bounds(1 - 2 * LEVEL)])
    assert (result.low, result.high) != pytest.approx([float(bound) for bound in plain.safe_bounds(1 - LEVEL)])


def test_a_printed_number_is_compared_over_the_units_it_was_drawn_from() -> None:
    random = number("accuracy.random@gemma2-9b")
    draws = 0.34 + 0.05 * np.linspace(-1, 1, 100)
    assert value(draws, random, unit="circuit draws").n == 100
    with pytest.raises(ValueError, match=r"number of circuit draws is not on record; pass paper_draws="):
        value(draws, PERFECT, unit="circuit draws")
    with pytest.raises(ValueError, match=r"number of prompts is not on record; pass paper_n="):
        value(draws, number("correct_only.q.dR@llama3.2-3b"))
    with pytest.raises(ValueError, match="quoted and never judged"):
        value(np.ones(10), number("paths.top_k.A"))


def test_a_sure_but_negligible_effect_is_no_replication() -> None:
    verdict = effect(0.05 + SPREAD / 10, margin=0.2)
    assert verdict.outcome == N
    assert verdict.low > 0
    assert "surely by less than the margin" in verdict.reason


def test_a_difference_of_hits_can_be_a_loss() -> None:
    """Six prompts alike leave room for some on which the first fails and the second does not."""
    hits = np.zeros(6, dtype=bool)
    unseen = 1 - LEVEL ** (1 / 6)
    result = ordering(hits, hits, margin=0.1)
    assert (result.low, result.high) == pytest.approx((-unseen, unseen))


def test_a_nested_ordering_compares_a_single_run_with_draws_on_either_side() -> None:
    rng = np.random.default_rng(31)
    circuit = np.ones(200)
    by_draw = rng.normal(0.8, 0.4, (6, 1)) + np.zeros((6, 200))
    assert ordering(circuit, by_draw, margin=0.1, unit="nested").outcome == OPEN
    assert ordering(circuit, by_draw.mean(0), margin=0.1).outcome != OPEN  # what ignoring the draws would say
    assert ordering(circuit, by_draw - 1, margin=0.1, unit="nested").outcome == R
    draws = np.array([VALUES, VALUES + 0.1, VALUES - 0.2])
    first, second = (ordering(*pair, margin=0.1, unit="nested") for pair in ((VALUES, draws), (draws, VALUES)))
    assert (first.measured, second.measured) == pytest.approx((0.1 / 3, -0.1 / 3))
    assert (first.low, first.high) == pytest.approx((-second.high, -second.low))


def test_the_strongest_of_many_places_decides_somewhere_and_nowhere() -> None:
    quiet = np.tile(np.linspace(-0.2, 0.2, 401), (40, 1))
    loud = quiet.copy()
    loud[17] += 0.5
    quiet_somewhere, quiet_nowhere, loud_somewhere, loud_nowhere = (
        rule(table, margin=0.1, support=RANGE) for table in (quiet, loud) for rule in (effect_somewhere, effect_nowhere)
    )
    assert (quiet_somewhere.outcome, quiet_nowhere.outcome) == (N, R)
    assert (loud_somewhere.outcome, loud_nowhere.outcome) == (R, N)
    assert loud_somewhere.measured == loud_nowhere.measured == pytest.approx(0.5)
    assert "place 17 of 40" in loud_somewhere.reason
    # the p-value is that of the test that rejects, and Holm lets the refutation by one place stand
    assert max(loud_nowhere.p_value, quiet_somewhere.p_value) < 1e-6
    assert min(quiet_nowhere.p_value, loud_somewhere.p_value) > 0.5
    assert family({"refuted": loud_nowhere, "kept": quiet_nowhere}).surviving == ("refuted",)
    assert effect_nowhere(quiet - 1, margin=0.1, support=RANGE).p_value == 1.0  # times the places it would be more
    with pytest.raises(ValueError, match=r"expected \(places, prompts\)"):
        effect_somewhere(SPREAD, margin=0.1, support=RANGE)


def test_the_best_of_many_noisy_places_is_no_effect() -> None:
    """Among 40 places of pure noise the largest is mostly 'significant' by itself; guarded, once in twenty runs."""
    rng = np.random.default_rng(32)
    runs = [effect_somewhere(rng.uniform(-2, 2, (40, 50)), margin=0.01, support=RANGE).outcome for _ in range(100)]
    assert runs.count(R) / len(runs) <= rate_is_at_most(0.05, len(runs))


def test_an_unidentified_number_never_fails() -> None:
    level = 0.05 / 2
    positive, negative = value(2.66 + SPREAD, SHIFT, level=level), value(9 + SPREAD, SHIFT, level=level)
    agrees = value_unidentified({"Q": negative, "K": positive})
    assert agrees.outcome == R
    assert "agrees with K" in agrees.reason
    differs = value_unidentified({"Q": negative, "K": negative})
    assert (differs.outcome, differs.p_value) == (OPEN, None)
    assert value_unidentified({"Q": not_applicable("value", "no such control")}).outcome == "NOT APPLICABLE"


def test_the_nearest_candidate_is_the_least_surprising() -> None:
    paper = number("binding.q.dR@gemma2-9b")
    result = {str(offset): value(paper.value + offset + VALUES - VALUES.mean(), paper) for offset in (5.0, 2.0, 9.0)}
    assert [verdict.outcome for verdict in result.values()] == [N] * 3
    assert value_unidentified(result).measured == pytest.approx(paper.value + 2.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_invalid_not_judged(bad: float) -> None:
    values = np.append(SPREAD, bad)
    for verdict in (
        value(values, SHIFT),
        effect(values, margin=0.2),
        no_effect(values, margin=0.2),
        ordering(values, np.zeros_like(values), margin=0.2),
        effect_somewhere(values[None], margin=0.2, support=RANGE),
    ):
        assert (verdict.outcome, verdict.gate) == ("INVALID", "finite")


@pytest.mark.parametrize("margin", [np.nan, np.inf, -0.1, 0.0])
def test_impossible_margins_are_refused(margin: float) -> None:
    for rule in (partial(no_effect, SPREAD), partial(value, SPREAD, SHIFT)):
        with pytest.raises(ValueError, match=f"a margin of {margin}; give the smallest change that counts.*above 0"):
            rule(margin=margin)
    somewhere = partial(effect_somewhere, np.ones((2, 9)), support=RANGE)
    for rule in (partial(effect, SPREAD), partial(ordering, SPREAD, SPREAD), somewhere):
        if margin == 0.0:
            assert rule(margin=margin).margin == 0.0
            continue
        with pytest.raises(ValueError, match=f"a margin of {margin}; give the smallest change.*0 or more"):
            rule(margin=margin)


def test_impossible_references_supports_and_pairs_are_refused() -> None:
    refused: list[tuple[Callable[..., Verdict], str]] = [
        (partial(effect, 3 * SPREAD, support=(-1, 1)), "leave the declared support"),
        (partial(ordering, SPREAD, SPREAD[:-1]), "give both on the same examples"),
    ]
    for origin in (np.nan, -np.inf):
        message = f"about {origin}; give the finite number"
        refused += [
            (partial(effect, SPREAD, above=origin), message),
            (partial(no_effect, SPREAD, about=origin), message),
        ]
    for rule, message in refused:
        with pytest.raises(ValueError, match=message):
            rule(margin=0.1)


def test_a_verdict_is_frozen_and_survives_json() -> None:
    verdicts = (value([2.0], SHIFT), effect([1.0], margin=0.1), not_applicable("set", "no groups"))
    for verdict in verdicts:
        assert json.loads(json.dumps(asdict(verdict), allow_nan=False))["outcome"] == verdict.outcome
    change: Callable[..., Any] = setattr
    with pytest.raises(FrozenInstanceError):
        change(verdicts[0], "outcome", R)


def test_p_values_fall_below_the_level_exactly_with_the_rejection() -> None:
    for shift in np.linspace(0, 0.8, 81):
        verdict = value(2.66 + shift + SPREAD, SHIFT, margin=1e-6)
        assert (verdict.p_value < 0.05) == (verdict.outcome == N)
        difference = effect(shift + 3 * SPREAD, margin=0.4)
        assert (difference.p_value < 0.05) == (difference.outcome == N)


def test_deviations_above_and_below_a_printed_number_count_equally() -> None:
    """The same distance on either side, a printed number's rounding included."""
    sides = [value(SPREAD + side * 0.4, replace(SHIFT, value=0.0), margin=0.25).p_value for side in (-1, 1)]
    assert sides[0] == pytest.approx(sides[1], rel=1e-9)
