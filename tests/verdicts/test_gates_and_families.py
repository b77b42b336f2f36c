"""Gates come before verdicts; families come after them."""

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

from rebinding.verdicts import (
    Gate,
    Verdict,
    above_chance,
    above_guessing,
    declared_n,
    edits_change_values,
    effect,
    equal_lengths,
    family,
    finite,
    group_present,
    guarded,
    invalid,
    noise_floor,
    not_applicable,
    replay_equals_forward,
    requirement,
    slot_mass,
)
from tests.verdicts.simulation import rate_is_at_most

SLOT = np.arange(20) % 3 > 0
"""Where one would be right who always names the same slot."""


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (finite([1.0, 2.0], [0.0]), finite([1.0], [np.nan])),
        (declared_n(300, 300), declared_n(299, 300)),
        (above_chance(np.ones(20, bool), 1 / 3), above_chance(np.arange(30) < 12, 1 / 3)),
        (above_guessing(np.ones(20, bool), {"slot": SLOT}), above_guessing(SLOT, {"other": ~SLOT[::-1], "slot": SLOT})),
        (replay_equals_forward([1e-6, 0], [1e-5, 1e-5]), replay_equals_forward([1e-6, np.nan], [1e-5, 1e-5])),
        (noise_floor(0.25, 0.12), noise_floor(0.25, 0.125)),
        (noise_floor(0.25, 0.0), noise_floor(0.25, np.nan)),
        (edits_change_values([1e-3, -2.0]), edits_change_values([1.0, 0.0])),
        (edits_change_values([1.0]), edits_change_values([])),
        (equal_lengths([5, 6], [5, 6]), equal_lengths([5, 6], [5, 7])),
        (equal_lengths([5, 6], [5, 6]), equal_lengths([5, 6], [5])),
        (slot_mass([0.0, 0.01]), slot_mass([0.0, 0.0099])),
        (slot_mass([1.0]), slot_mass([])),
        (group_present("B", [(1, 2)]), group_present("B", [])),
        (requirement("answer_changes", True, "unused"), requirement("answer_changes", False, "the answers are equal")),
    ],
)
def test_each_gate_passes_and_fails(good, bad):
    assert good.passed
    assert not bad.passed
    verdict = guarded("effect", [good, bad], lambda: effect(np.ones(9), margin=0.1))
    assert (verdict.outcome, verdict.gate) == ("INVALID", bad.name)
    assert bad.detail in verdict.reason
    assert guarded("effect", [good], lambda: effect(np.ones(9), margin=0.1)).outcome == "REPLICATED"


def test_a_failed_gate_stops_the_rule_and_is_named():
    def refuse_call():
        raise AssertionError("judged behind a shut gate")

    gates = [Gate("first", False, "one"), Gate("second", False, "two")]
    assert guarded("value", gates, refuse_call).gate == "first"


def test_a_model_at_chance_rarely_passes_the_ability_gate():
    hits = np.random.default_rng(50).random((2000, 300)) < 1 / 3
    assert np.mean([above_chance(row, 1 / 3).passed for row in hits]) <= rate_is_at_most(0.001, 2000)
    with pytest.raises(ValueError, match="one boolean per prompt"):
        above_chance([1.0, 0.0], 1 / 3)


def test_a_mixture_of_guesses_does_not_pass():
    """A model that takes one of three guesses at random on every prompt, of which one is right in half of the cases."""
    rng, runs = np.random.default_rng(51), 2000
    right = {"a": np.arange(60) % 2 == 0, "b": np.arange(60) % 3 == 0, "c": np.arange(60) % 3 == 1}
    table = np.stack(list(right.values()))
    hits = table[rng.integers(3, size=(runs, 60)), np.arange(60)]
    assert np.mean([above_guessing(row, right).passed for row in hits]) <= rate_is_at_most(0.001, runs)


def rejected(p_value):
    return Verdict("value", "NOT REPLICATED", "far off", p_value=p_value)


def test_expected_false_alarms_count_judged_claims_only():
    verdicts = {str(i): Verdict("value", "REPLICATED", "close", p_value=0.5) for i in range(40)}
    verdicts |= {"x": invalid("value", "finite", "nan"), "y": not_applicable("set", "no groups")}
    run = family(verdicts)
    assert (run.judged, run.expected_false_alarms) == (40, pytest.approx(2.0))
    assert "at most 2.0 false alarms" in run.statement


def test_holm_keeps_the_sure_rejection_and_drops_the_lucky_one():
    verdicts = {f"ok{i}": Verdict("value", "REPLICATED", "close", p_value=0.6) for i in range(20)}
    verdicts |= {"sure": rejected(1e-6), "lucky": rejected(0.04)}
    run = family(verdicts)
    assert (set(run.rejected), run.surviving) == ({"sure", "lucky"}, ("sure",))
    raw = [0.6] * 20 + [1e-6, 0.04]
    assert list(run.adjusted.values()) == pytest.approx(multipletests(raw, method="holm")[1])


def test_a_family_without_claims_says_so():
    assert family({}).statement.startswith("0 claims judged")
