"""From rules to what a report says: gates before verdicts, families of claims after them, sentences judged twice, and
headline claims, which have the verdict of their rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, binomtest
from statsmodels.stats.multitest import multipletests

from rebinding.paper.claim import Claim
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
from rebinding.verdicts.effects import effect_outcomes
from rebinding.verdicts.estimates import estimate, p_below
from rebinding.verdicts.gates import _p_of_hits
from rebinding.verdicts.headline import HeadlineVerdict, headline_verdicts, verdict_of_all
from rebinding.verdicts.judgement import Judgement, Sentence, in_words, judgement, sentences
from tests.report.folders import make_row
from tests.verdicts.characteristics import rate_is_at_most

R, N, OPEN, INVALID, NOT_APPLICABLE = "REPLICATED", "NOT REPLICATED", "INCONCLUSIVE", "INVALID", "NOT APPLICABLE"
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
        # unequal in number, also where every one of the first is as long as the only one of the second
        (equal_lengths([5, 6], [5, 6]), equal_lengths([5, 6], [5])),
        (equal_lengths([3], [3]), equal_lengths([3, 3], [3])),
        (equal_lengths([3], [3]), equal_lengths([3], [3, 3])),
        (slot_mass([0.0, 0.01]), slot_mass([0.0, 0.0099])),
        (slot_mass([1.0]), slot_mass([])),
        (group_present("B", [(1, 2)]), group_present("B", [])),
        (requirement("answer_changes", True, "unused"), requirement("answer_changes", False, "the answers are equal")),
    ],
)
def test_each_gate_passes_and_fails(good: Gate, bad: Gate) -> None:
    assert good.passed
    assert not bad.passed
    verdict = guarded("effect", [good, bad], lambda: effect(np.ones(9), margin=0.1))
    assert (verdict.outcome, verdict.gate) == (INVALID, bad.name)
    assert bad.detail in verdict.reason
    assert guarded("effect", [good], lambda: effect(np.ones(9), margin=0.1)).outcome == R


def test_a_failed_gate_stops_the_rule_and_is_named() -> None:
    def refuse_call() -> Verdict:
        raise AssertionError("judged behind a shut gate")

    gates = [Gate("first", False, "one"), Gate("second", False, "two")]
    assert guarded("value", gates, refuse_call).gate == "first"


def test_a_model_at_chance_or_that_guesses_rarely_passes_the_ability_gates() -> None:
    """Also one that takes one of three guesses at random on every prompt, one of them right in half of the cases."""
    rng, runs = np.random.default_rng(51), 2000
    hits = rng.random((runs, 300)) < 1 / 3
    assert np.mean([above_chance(row, 1 / 3).passed for row in hits]) <= rate_is_at_most(0.001, runs)
    right = {"a": np.arange(60) % 2 == 0, "b": np.arange(60) % 3 == 0, "c": np.arange(60) % 3 == 1}
    guesses = np.stack(list(right.values()))[rng.integers(3, size=(runs, 60)), np.arange(60)]
    assert np.mean([above_guessing(row, right).passed for row in guesses]) <= rate_is_at_most(0.001, runs)
    with pytest.raises(ValueError, match="one boolean per prompt"):
        above_chance([1.0, 0.0], 1 / 3)


@pytest.mark.parametrize("count", [0, 1, 12, 30])
def test_chance_is_judged_by_the_exact_binomial_test(count: int) -> None:
    expected = binomtest(count, 30, 1 / 3, alternative="greater").pvalue
    assert _p_of_hits(np.arange(30) < count, 1 / 3) == pytest.approx(expected, rel=1e-9)


# Families of claims


def test_expected_false_alarms_count_judged_claims_only() -> None:
    verdicts = {str(i): Verdict("value", R, "close", p_value=0.5) for i in range(40)}
    verdicts |= {"x": invalid("value", "finite", "nan"), "y": not_applicable("set", "no groups")}
    run = family(verdicts)
    assert (run.judged, run.expected_false_alarms) == (40, pytest.approx(2.0))
    assert "at most 2.0 false alarms" in run.statement
    assert family({}).statement.startswith("0 rows judged")


def test_holm_keeps_the_sure_rejection_and_drops_the_lucky_one() -> None:
    p_values = {f"ok{i}": 0.6 for i in range(20)} | {"sure": 1e-6, "lucky": 0.04}
    run = family({id: Verdict("value", R if p == 0.6 else N, "", p_value=p) for id, p in p_values.items()})
    assert (set(run.rejected), run.surviving) == ({"sure", "lucky"}, ("sure",))
    assert list(run.adjusted.values()) == pytest.approx(multipletests([*p_values.values()], method="holm")[1])


# Sentences judged twice

STANDINGS = {
    (R, R): "robust",
    (R, N): "artifact",
    (N, R): "hidden",
    (N, N): "refuted",
    (R, OPEN): None,
    (INVALID, R): None,
}


def test_a_sentence_has_a_standing_where_both_verdicts_are_decided() -> None:
    """The sentence about all counts them, and lists what is not robust."""
    judged = [
        Sentence(id, make_row(id, verdict=published), make_row(f"{id}.controlled", verdict=controlled))
        for id, (published, controlled) in zip(("row0", "row1", "row2", "row3", "row4", "row5"), STANDINGS, strict=True)
    ]
    assert [sentence.standing for sentence in judged] == [*STANDINGS.values()]
    assert in_words(judged) == (
        "Of 6 sentences judged as published and controlled: 1 robust, 1 artifact (row1), 1 hidden (row2),"
        " 1 refuted (row3), 2 open or not judged."
    )


def test_a_sentence_with_both_rows_is_judged_twice() -> None:
    verdicts = {"once": R, "twice": R, "alone.controlled": R, "twice.controlled": N}
    judged = rows(verdicts)
    assert sentences(judged) == (
        Sentence("once", judged[0], None),
        Sentence("twice", judged[1], judged[3]),
        Sentence("alone", None, judged[2]),
    )
    assert [sentence.id for sentence in sentences(judged) if sentence.is_judged_twice] == ["twice"]


@pytest.mark.parametrize(
    ("verdict", "gate", "expected", "as_expected"),
    [
        (R, None, R, True),
        (R, None, N, False),
        (INVALID, "group_present", "INVALID (group_present)", True),
        (INVALID, "group_present", "INVALID (above_chance)", False),
        (INVALID, "group_present", None, False),  # a row that is only reported must still be valid
        (N, None, None, True),
    ],
)
def test_expected_verdicts_are_recognised(
    verdict: str, gate: str | None, expected: str | None, as_expected: bool
) -> None:
    judged = judgement(
        Claim("binding.k_redirects", "Keys redirect.", "section 5", "effect", ("dR",), "mean", "group B"),
        Verdict("effect", verdict, "as told", gate=gate),
        model="m", expected=expected, paper=None, design="published", circuit="declared",
    )  # fmt: skip
    assert judged.as_expected == as_expected


# Headline claims


def rows(verdicts: dict[str, str], *, headline: int | None = 2, **fields: Any) -> list[Judgement]:
    """Rows by id, those of one sentence under both procedures included."""
    return [
        make_row(id, verdict=verdict, sentence=id.removesuffix(".controlled"), headline=headline, **fields)
        for id, verdict in verdicts.items()
    ]


def judge_single(judgements: list[Judgement]) -> HeadlineVerdict:
    (verdict,) = headline_verdicts(judgements)
    return verdict


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ((R,), R),
        ((R, R, R), R),
        ((R, N), N),
        ((N, INVALID), N),
        ((N, OPEN, NOT_APPLICABLE), N),
        ((R, OPEN), OPEN),
        ((R, INVALID), INVALID),
        ((OPEN, INVALID), INVALID),
        ((R, NOT_APPLICABLE), R),
        ((R, "REPORTED"), R),
        ((NOT_APPLICABLE, NOT_APPLICABLE), NOT_APPLICABLE),
        ((NOT_APPLICABLE, "REPORTED"), NOT_APPLICABLE),
        (("REPORTED",), None),
        ((), None),
    ],
)
def test_the_verdict_of_several_rows(verdicts: tuple[str, ...], expected: str | None) -> None:
    """In whatever order they stand."""
    assert verdict_of_all(verdicts) == verdict_of_all(reversed(verdicts)) == expected


def test_rows_of_other_headlines_and_of_none_are_left_out() -> None:
    other_rows = [*rows({"c": N}, headline=3), *rows({"d": N}, headline=None)]
    two, three = headline_verdicts([*other_rows, *rows({"a": R, "b": R})])
    assert [(verdict.headline.number, verdict.published) for verdict in (two, three)] == [(2, R), (3, N)]


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        ({"expected": R, "because": None}, N),
        ({"expected": None, "because": None}, R),
        ({"expected": N, "because": "as planted"}, R),
    ],
    ids=["asserted", "another model", "a plant"],
)
def test_printed_numbers_count_on_the_model_that_they_are_of(number: dict[str, Any], expected: str) -> None:
    printed = rows({"a": N}, kind="value", **number)
    assert judge_single([*printed, *rows({"b": R}, kind="effect")]).published == expected
    assert judge_single(printed).published == N, "where there is nothing else, the number is all"


@pytest.mark.parametrize(
    ("verdicts", "published", "controlled", "standing"),
    [
        ({"a": R, "b": R, "a.controlled": R, "b.controlled": N}, R, N, "artifact"),
        ({"a": R, "a.controlled": OPEN}, R, OPEN, None),
        ({"a": R}, R, None, None),
    ],
)
def test_both_procedures_are_listed(
    verdicts: dict[str, str], published: str, controlled: str | None, standing: str | None
) -> None:
    verdict = judge_single(rows(verdicts))
    assert (verdict.published, verdict.controlled, verdict.standing) == (published, controlled, standing)


def test_an_assertion_about_a_model_counts_for_that_model_only() -> None:
    """The controlled row of what it does not assert is left out as well."""
    asserted = rows({"a": R, "a.controlled": R}, expected=R)
    other_rows = rows({"b": N, "b.controlled": N}, expected=None)
    for judged, expected in (([*asserted, *other_rows], R), (other_rows, N)):
        verdict = judge_single(judged)
        assert (verdict.published, verdict.controlled) == (expected, expected)


def test_the_decisive_row_is_the_first_with_the_verdict_and_a_number() -> None:
    """Without a number, the first with the verdict; without published rows, a controlled one."""
    numberless = rows({"b": N}, measured=None)
    for judged, decisive in (
        ([*rows({"a": R}), *numberless, *rows({"c": N, "c.controlled": R})], "c"),
        ([*rows({"a": R}), *numberless], "b"),
        (rows({"a.controlled": R}, procedure="controlled"), "a.controlled"),
    ):
        assert judge_single(judged).decisive.id == decisive


def test_rows_that_are_not_as_expected_are_named() -> None:
    assert judge_single(rows({"a": R, "b": R})).differing == ()
    assert [row.id for row in judge_single([*rows({"a": R}), *rows({"b.controlled": N})]).differing] == ["b.controlled"]


@pytest.mark.parametrize(
    ("p_value", "others", "expected"), [(0.04, 0, N), (0.04, 1, OPEN), (0.02, 1, N), (0.02, 2, OPEN)]
)
def test_one_of_several_rows_must_be_refuted_as_one_of_several(p_value: float, others: int, expected: str) -> None:
    """Holm: the smallest of k p-values must be below 5 % / k. The row itself stays NOT REPLICATED. Rows that are not
    judged cost no level."""
    refuted = rows({"a": N}, p_value=p_value)
    judged = [*refuted, *rows(dict.fromkeys("bcd"[:others], R))]
    verdict = judge_single(judged)
    assert verdict.published == expected
    assert verdict.decisive == refuted[0]
    unjudged = rows({"x": NOT_APPLICABLE, "y": INVALID, "z": "REPORTED"}, p_value=None)
    assert judge_single([*judged, *unjudged]).published == (N if expected == N else INVALID)


def test_a_claim_of_three_true_rows_is_refuted_in_at_most_one_run_of_twenty() -> None:
    """Each mean lies on its boundary, the worst of all true cases. Rows alone would refute the claim in one run of
    seven."""
    runs = 1000
    measurement = estimate(np.random.default_rng(5).normal(size=(runs, 3, 60)), unit="prompts")
    outcomes, p_values = effect_outcomes(measurement, 0.0), p_below(measurement, 0.0, 0.05)  # (run, row)
    refuted = 0
    for run in np.flatnonzero((outcomes == N).any(axis=1)):  # no other run can refute the claim
        judged = [
            make_row(f"{row}", verdict=str(outcomes[run, row]), p_value=float(p_values[run, row]), headline=2)
            for row in range(3)
        ]
        refuted += judge_single(judged).published == N
    allowed = binom.ppf(0.999, runs, 0.05)
    assert 0 < refuted <= allowed
    assert (outcomes == N).any(axis=1).sum() > 1.5 * allowed
