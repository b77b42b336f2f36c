"""A headline claim has the verdict of its rows: which rows count, and what several of them come to."""

from __future__ import annotations

import pytest

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
