"""A headline claim has the verdict of its rows: which rows count, and what several of them come to."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from rebinding.verdicts import effect
from rebinding.verdicts.headline import HeadlineVerdict, headline_verdicts, verdict_of_all
from rebinding.verdicts.judgement import Judgement
from tests.report.folders import make_row

R, N, OPEN, INVALID, NOT_APPLICABLE = "REPLICATED", "NOT REPLICATED", "INCONCLUSIVE", "INVALID", "NOT APPLICABLE"


def rows(verdicts: dict[str, str], *, headline: int | None = 2, **fields: object) -> list[Judgement]:
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
def test_printed_numbers_count_on_the_model_that_they_are_of(number: dict[str, object], expected: str) -> None:
    printed = rows({"a": N}, kind="value", **number)
    assert judge_single([*printed, *rows({"b": R}, kind="effect")]).published == expected
    assert judge_single(printed).published == N, "where there is nothing else, the number is all"


def test_both_procedures_are_listed() -> None:
    verdict = judge_single(rows({"a": R, "b": R, "a.controlled": R, "b.controlled": N}))
    assert (verdict.published, verdict.controlled, verdict.standing) == (R, N, "artifact")
    assert judge_single(rows({"a": R, "a.controlled": OPEN})).standing is None
    single = judge_single(rows({"a": R}))
    assert (single.published, single.controlled, single.standing) == (R, None, None)


def test_assertion_about_a_model_counts_for_that_model_only() -> None:
    """The controlled row of what it does not assert is left out as well."""
    asserted = rows({"a": R, "a.controlled": R}, expected="REPLICATED")
    other_rows = rows({"b": N, "b.controlled": N}, expected=None)
    assert (judge_single([*asserted, *other_rows]).published, judge_single([*asserted, *other_rows]).controlled) == (
        R,
        R,
    )
    assert (judge_single(other_rows).published, judge_single(other_rows).controlled) == (N, N)


def test_the_decisive_row_is_the_first_with_the_verdict_and_a_number() -> None:
    numberless = rows({"b": N}, measured=None)
    verdict = judge_single([*rows({"a": R}), *numberless, *rows({"c": N, "c.controlled": R})])
    assert verdict.decisive is not None
    assert verdict.decisive.id == "c"
    stopped = judge_single([*rows({"a": R}), *numberless])
    assert stopped.decisive is not None
    assert stopped.decisive.id == "b"
    controlled = judge_single(rows({"a.controlled": R}, procedure="controlled"))
    assert controlled.decisive is not None
    assert controlled.decisive.id == "a.controlled"


def test_rows_that_are_not_as_expected_are_named() -> None:
    assert judge_single(rows({"a": R, "b": R})).differing == ()
    assert [row.id for row in judge_single([*rows({"a": R}), *rows({"b.controlled": N})]).differing] == ["b.controlled"]


@pytest.mark.parametrize(
    ("p_value", "others", "expected"), [(0.04, 0, N), (0.04, 1, OPEN), (0.02, 1, N), (0.02, 2, OPEN)]
)
def test_one_of_several_rows_must_be_refuted_as_one_of_several(p_value: float, others: int, expected: str) -> None:
    """Holm: the smallest of k p-values must be below 5 % / k. The row itself stays NOT REPLICATED."""
    refuted = rows({"a": N}, p_value=p_value)
    verdict = judge_single([*refuted, *rows(dict.fromkeys("bcd"[:others], R))])
    assert verdict.published == expected
    assert verdict.decisive == refuted[0]


def test_rows_that_are_not_judged_cost_no_level() -> None:
    unjudged = rows({"b": NOT_APPLICABLE, "c": INVALID, "d": "REPORTED"}, p_value=None)
    assert judge_single([*rows({"a": N}, p_value=0.04), *unjudged]).published == N


def test_a_claim_of_three_true_rows_is_refuted_in_at_most_one_run_of_twenty() -> None:
    """Each mean lies on its boundary, the worst of all true cases. Rows alone would refute the claim in one run of
    seven."""
    runs, generator = 2000, np.random.default_rng(5)
    refuted, refuted_alone = 0, 0
    for _ in range(runs):
        verdicts = {name: effect(generator.normal(size=60), margin=0.0) for name in "abc"}
        judged = [row for name, v in verdicts.items() for row in rows({name: v.outcome}, p_value=v.p_value)]
        refuted += judge_single(judged).published == N
        refuted_alone += any(verdict.outcome == N for verdict in verdicts.values())
    assert refuted <= binom.ppf(0.999, runs, 0.05)
    assert refuted_alone > 1.5 * binom.ppf(0.999, runs, 0.05)
