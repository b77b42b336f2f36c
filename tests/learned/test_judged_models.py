"""A run on learned models that lacks a row, or decides hardly any, is reported."""

from __future__ import annotations

import re
from pathlib import Path

from claims.catalogue import claims
from rebinding.learned.shelf import learned_models
from rebinding.report.folder import ReportedRun
from tests.real.judged import lacking
from tests.report.folders import make_row

NAMES = [learned.name for learned in learned_models()]
ROWS = sorted(claim.id for claim in claims() if not claim.long)
HEADLINE_ROWS = sorted(claim.id for claim in claims() if claim.headline)


def make_run(verdicts: dict[tuple[str, str], str]) -> ReportedRun:
    """Every row REPLICATED on every model, except those in `verdicts`; a row with "" is missing."""
    outcomes = {(name, row): "REPLICATED" for name in NAMES for row in ROWS} | verdicts
    claims = tuple(make_row(row, name, verdict=verdict) for (name, row), verdict in outcomes.items() if verdict)
    return ReportedRun({}, {}, (), claims)


def test_a_whole_run_lacks_nothing() -> None:
    assert lacking(make_run({})) == []


def test_a_row_that_was_not_judged_is_named() -> None:
    assert lacking(make_run({(NAMES[1], ROWS[3]): ""})) == [f"{NAMES[1]}: no verdict of 1 rows, such as {ROWS[3]}"]


def test_a_model_on_which_next_to_nothing_is_decided_is_named() -> None:
    small = (len(ROWS) - 1) // 3
    faults = lacking(make_run({(NAMES[0], row): "INVALID" for row in ROWS[small:]}))
    assert faults == [f"{NAMES[0]}: {small} of {len(ROWS)} rows are decided, less than a third"]


def test_the_rows_of_the_headline_claims_are_enough_where_they_are_wanted() -> None:
    others = {(name, row): "" for name in NAMES for row in ROWS if row not in HEADLINE_ROWS}
    assert lacking(make_run(others), headline=True) == []
    assert lacking(make_run(others)) != []
    faults = lacking(make_run(others | {(NAMES[0], HEADLINE_ROWS[1]): ""}), headline=True)
    assert faults == [f"{NAMES[0]}: no verdict of 1 rows, such as {HEADLINE_ROWS[1]}"]


def test_the_commands_run_every_row_that_is_wanted() -> None:
    """`tox -e learned` and `tox -e learned-all` choose rows by their marks, and by nothing else."""
    commands = (Path(__file__).parents[2] / "tox.ini").read_text()
    headline, every = re.findall(r"^ +- pytest claims --learned all (.*)$", commands, re.MULTILINE)
    assert " -m headline " in headline
    assert ' -m "not long" ' in every
    assert " -k " not in headline + every
    assert 0 < len(HEADLINE_ROWS) < len(ROWS) < len(claims())
