"""Each rule on samples whose verdict is plain, degenerate ones included."""

import json
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import pytest

from rebinding.paper.numbers import number, printed_number
from rebinding.verdicts import (
    effect,
    effect_nowhere,
    effect_somewhere,
    no_effect,
    not_applicable,
    ordering,
    value,
    value_unidentified,
)
from tests.verdicts.simulation import rate_is_at_most

SPREAD = np.linspace(-1, 1, 101)
SHIFT = printed_number("plant.q.dR", "2.66", kind="dR", source="plant", n=100)


def test_value_agrees_disagrees_and_stays_open():
    assert value(2.66 + SPREAD, SHIFT).outcome == "REPLICATED"
    assert value(4.66 + SPREAD, SHIFT).outcome == "NOT REPLICATED"
    open_ = value(2.66 + 2 * SPREAD[::5], SHIFT)
    assert open_.outcome == "INCONCLUSIVE"
    assert open_.needed_n > 21
    assert f"about N = {open_.needed_n} would decide" in open_.reason


def test_value_reports_an_interval_that_can_be_held_against_paper_and_margin():
    verdict = value(2.66 + SPREAD, SHIFT)
    assert verdict.measured == pytest.approx(2.66)
    assert SHIFT.value - verdict.margin <= verdict.low < 2.66 < verdict.high <= SHIFT.value + verdict.margin
    assert verdict.n == 101


def test_the_needed_n_is_enough_and_a_quarter_of_it_is_not():
    open_ = value(2.66 + 2 * SPREAD[::5], SHIFT)
    sample = 2.66 + 2 * np.linspace(-1, 1, open_.needed_n) * 1.05
    assert value(sample, SHIFT).outcome == "REPLICATED"
    assert value(sample[:: open_.needed_n // 12], SHIFT).outcome == "INCONCLUSIVE"


def test_a_paper_with_few_prompts_leaves_it_open_for_any_n():
    vague = printed_number("plant.q.dR", "2.66", kind="dR", source="plant", n=3)
    verdict = value(2.66 + 2 * SPREAD, vague)
    assert (verdict.outcome, verdict.needed_n) == ("INCONCLUSIVE", None)
    assert "open for any N" in verdict.reason


def test_rounding_coarser_than_the_margin_can_neither_earn_nor_cost_a_replication():
    coarse = printed_number("plant.q.dR", "3", kind="dR", source="plant", n=100)
    assert value(np.full(50, 3.0), coarse, margin=0.2).outcome == "INCONCLUSIVE"
    assert value(np.full(50, 3.4), coarse, margin=0.2).outcome == "INCONCLUSIVE"
    assert value(np.full(50, 3.8), coarse, margin=0.2).outcome == "NOT REPLICATED"


def test_full_accuracy_on_both_sides_replicates_and_a_miss_does_not():
    perfect = number("accuracy.full@gemma2-9b")
    assert value(np.ones(300, bool), perfect).outcome == "REPLICATED"
    assert value(np.arange(300) < 240, perfect).outcome == "NOT REPLICATED"
    assert value(np.ones(5, bool), perfect).outcome == "INCONCLUSIVE"  # five hits also come at an accuracy of 0.6


def test_random_circuits_are_resampled_by_draw():
    random = number("accuracy.random@gemma2-9b")
    draws = 0.34 + 0.05 * np.linspace(-1, 1, 100)
    assert value(draws, random, unit="circuit draws").n == 100
    with pytest.raises(ValueError, match=r"number of circuit draws is not on record; pass paper_draws="):
        value(draws, number("accuracy.full@gemma2-9b"), unit="circuit draws")
    with pytest.raises(ValueError, match=r"number of prompts is not on record; pass paper_n="):
        value(draws, number("correct_only.q.dR@llama3.2-3b"))


def test_settings_are_never_judged():
    with pytest.raises(ValueError, match="quoted and never judged"):
        value(np.ones(10), number("paths.top_k.A"))


def test_a_few_wild_prompts_cannot_reject_or_earn_anything():
    values = np.zeros(30)
    values[0] = 60.0
    assert effect(values, margin=0.2).outcome == "INCONCLUSIVE"
    assert no_effect(values, margin=0.2).outcome == "INCONCLUSIVE"


def test_equal_values_are_decided_from_five_on():
    for n, outcome in ((4, "INCONCLUSIVE"), (5, "REPLICATED")):
        assert effect(np.full(n, 0.7), margin=0.2).outcome == outcome
        assert no_effect(np.zeros(n), margin=0.2).outcome == outcome
        assert value(np.full(n, 2.66), SHIFT).outcome == outcome
    assert effect(np.full(1, 0.7), margin=0.2).needed_n == 5
    assert effect(np.zeros(5), margin=0.0).outcome == "INCONCLUSIVE"  # the boundary itself is on neither side of it
    assert effect(np.full(5, -0.7), margin=0.2).outcome == "NOT REPLICATED"
    assert no_effect(np.full(5, 0.7), margin=0.2).outcome == "NOT REPLICATED"


def test_fewer_than_five_draws_decide_nothing():
    for n, outcome in ((4, "INCONCLUSIVE"), (5, "REPLICATED")):
        assert effect(np.ones((n, 30)), margin=0.2, unit="nested").outcome == outcome
        assert no_effect(np.zeros((n, 30)), margin=0.2, unit="nested").outcome == outcome
        assert effect(np.ones(n), margin=0.2, unit="circuit draws").outcome == outcome


def test_equal_hits_need_more_because_rare_misses_hide():
    for n, outcome in ((28, "INCONCLUSIVE"), (29, "REPLICATED")):  # 0.9^28 = 5.2 %, 0.9^29 = 4.7 %
        assert no_effect(np.zeros(n, bool), margin=0.10).outcome == outcome
        assert no_effect(np.zeros(n), margin=0.10, support=(-1, 1)).outcome == outcome


def test_a_sure_but_negligible_effect_is_no_replication():
    verdict = effect(0.05 + SPREAD / 10, margin=0.2)
    assert verdict.outcome == "NOT REPLICATED"
    assert verdict.low > 0
    assert "surely by less than the margin" in verdict.reason


def test_ordering_pairs_the_examples():
    wide = 10 * SPREAD
    assert ordering(wide + 0.5, wide, margin=0.2).outcome == "REPLICATED"
    assert ordering(wide, wide + 0.5, margin=0.2).outcome == "NOT REPLICATED"
    shuffled = np.random.default_rng(30).permutation(wide)
    assert ordering(wide + 0.5, shuffled, margin=0.2).outcome == "INCONCLUSIVE"
    with pytest.raises(ValueError, match="give both on the same examples"):
        ordering(wide, wide[:-1], margin=0.2)


def test_ordering_of_hits_knows_that_they_are_hits():
    nine = np.ones(9, bool)
    assert ordering(nine, ~nine, margin=0.1).outcome == "REPLICATED"
    assert ordering(nine, nine, margin=0.1).outcome == "INCONCLUSIVE"
    assert ordering(np.ones(40, bool), np.ones(40, bool), margin=0.1).outcome == "NOT REPLICATED"


def test_nested_ordering_needs_draws_not_only_prompts():
    rng = np.random.default_rng(31)
    circuit = np.ones(200)
    by_draw = rng.normal(0.8, 0.4, (6, 1)) + np.zeros((6, 200))
    assert ordering(circuit, by_draw, margin=0.1, unit="nested").outcome == "INCONCLUSIVE"
    assert ordering(circuit, by_draw.mean(0), margin=0.1).outcome != "INCONCLUSIVE"  # what ignoring the draws would say
    assert ordering(circuit, by_draw - 1, margin=0.1, unit="nested").outcome == "REPLICATED"


RANGE = (-2.0, 2.0)


def test_the_strongest_of_many_places():
    quiet = np.tile(SPREAD / 5, (40, 1))
    assert effect_nowhere(quiet, margin=0.1, support=RANGE).outcome == "REPLICATED"
    assert effect_somewhere(quiet, margin=0.1, support=RANGE).outcome == "NOT REPLICATED"
    loud = quiet.copy()
    loud[17] += 0.5
    effect_verdict = effect_somewhere(loud, margin=0.1, support=RANGE)
    anywhere = effect_nowhere(loud, margin=0.1, support=RANGE)
    assert (effect_verdict.outcome, anywhere.outcome) == ("REPLICATED", "NOT REPLICATED")
    assert effect_verdict.measured == anywhere.measured == pytest.approx(0.5)
    assert "place 17 of 40" in effect_verdict.reason
    assert effect_nowhere(quiet - 1, margin=0.1, support=RANGE).p_value == 1.0  # times the places it would be more
    with pytest.raises(ValueError, match=r"expected \(places, prompts\)"):
        effect_somewhere(SPREAD, margin=0.1, support=RANGE)


def test_the_best_of_many_noisy_places_is_no_effect():
    """Among 40 places of pure noise the largest is mostly 'significant' by itself; guarded, once in twenty runs."""
    rng = np.random.default_rng(32)
    runs = [effect_somewhere(rng.uniform(-2, 2, (40, 50)), margin=0.01, support=RANGE).outcome for _ in range(100)]
    assert runs.count("REPLICATED") / len(runs) <= rate_is_at_most(0.05, len(runs))


def test_an_unidentified_number_never_fails():
    level = 0.05 / 2
    positive, negative = value(2.66 + SPREAD, SHIFT, level=level), value(9 + SPREAD, SHIFT, level=level)
    agrees = value_unidentified({"Q": negative, "K": positive})
    assert agrees.outcome == "REPLICATED"
    assert "agrees with K" in agrees.reason
    differs = value_unidentified({"Q": negative, "K": negative})
    assert (differs.outcome, differs.p_value) == ("INCONCLUSIVE", None)
    assert value_unidentified({"Q": not_applicable("value", "no such control")}).outcome == "NOT APPLICABLE"


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_invalid_not_judged(bad):
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
def test_impossible_margins_are_refused(margin):
    for rule in (partial(no_effect, SPREAD), partial(value, SPREAD, SHIFT)):
        with pytest.raises(ValueError, match=f"a margin of {margin}; give the smallest change that counts.*above 0"):
            rule(margin=margin)
    rows = np.ones((2, 9))
    somewhere = partial(effect_somewhere, rows, support=RANGE)
    for rule in (partial(effect, SPREAD), partial(ordering, SPREAD, SPREAD), somewhere):
        if margin == 0.0:
            assert rule(margin=margin).margin == 0.0
            continue
        with pytest.raises(ValueError, match=f"a margin of {margin}; give the smallest change.*0 or more"):
            rule(margin=margin)


@pytest.mark.parametrize("origin", [np.nan, np.inf, -np.inf])
def test_non_finite_references_are_refused(origin):
    with pytest.raises(ValueError, match=f"about {origin}; give the finite number"):
        effect(SPREAD, margin=0.1, above=origin)
    with pytest.raises(ValueError, match=f"about {origin}; give the finite number"):
        no_effect(SPREAD, margin=0.1, about=origin)


def test_impossible_supports_and_units_are_refused():
    with pytest.raises(ValueError, match="leave the declared support"):
        effect(3 * SPREAD, margin=0.1, support=(-1, 1))
    with pytest.raises(ValueError, match="unknown unit 'heads'; give one of prompts, circuit draws"):
        effect(SPREAD, margin=0.1, unit="heads")


def test_every_verdict_survives_json():
    for verdict in (value([2.0], SHIFT), effect([1.0], margin=0.1), not_applicable("set", "no groups")):
        assert json.loads(json.dumps(asdict(verdict), allow_nan=False))["outcome"] == verdict.outcome


def test_p_values_fall_below_the_level_exactly_with_the_rejection():
    for shift in np.linspace(0, 0.8, 81):
        verdict = value(2.66 + shift + SPREAD, SHIFT, margin=1e-6)
        assert (verdict.p_value < 0.05) == (verdict.outcome == "NOT REPLICATED")
        difference = effect(shift + 3 * SPREAD, margin=0.4)
        assert (difference.p_value < 0.05) == (difference.outcome == "NOT REPLICATED")


def test_open_verdict_states_what_would_decide_it():
    open_ = effect(SPREAD[::10] + 0.3, margin=0.1)
    assert open_.outcome == "INCONCLUSIVE"
    assert open_.needed_n is not None
    assert f"about N = {open_.needed_n} would decide" in open_.reason


def test_deviations_above_and_below_a_printed_number_count_equally():
    """The same distance on either side, a printed number's rounding included."""
    sides = [value(SPREAD + side * 0.4, replace(SHIFT, value=0.0), margin=0.25).p_value for side in (-1, 1)]
    assert sides[0] == pytest.approx(sides[1], rel=1e-9)
