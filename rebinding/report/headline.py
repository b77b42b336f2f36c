"""The headline table: the headline claims on all models of a run, with a reason for each verdict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import shorten

from rebinding.paper.headlines import HEADLINES, Headline
from rebinding.report.summary import ModelSummary, Summary
from rebinding.verdicts.headline import ALONE, HeadlineVerdict, find_deciding_row
from rebinding.verdicts.judgement import Judgement
from rebinding.verdicts.outcome import Outcome

MAX_REASON = 160
"""Characters of a reason in the table; the row that the table links to has all of it."""


@dataclass(frozen=True)
class ProcedureVerdict:
    """The verdict on a headline claim under one procedure, the row that decides, and the reason in one line.

    `reason` is empty if the line above gives the same reason.
    """

    procedure: str
    outcome: Outcome
    row: Judgement
    reason: str


@dataclass(frozen=True)
class HeadlineCell:
    """A headline claim on one model; without a verdict if none of its rows was judged there."""

    model: ModelSummary
    verdict: HeadlineVerdict | None
    procedures: tuple[ProcedureVerdict, ...]


@dataclass(frozen=True)
class HeadlineRow:
    """A headline claim on each model."""

    headline: Headline
    cells: tuple[HeadlineCell, ...]


@dataclass(frozen=True)
class HeadlineTable:
    """The models with a judged headline claim, and a row for each such claim."""

    models: tuple[ModelSummary, ...]
    rows: tuple[HeadlineRow, ...]


def headline_table(summary: Summary) -> HeadlineTable:
    """The table of a run; it has no rows if no headline claim was judged."""
    models = tuple(model for model in summary.models if model.headline)
    rows = (HeadlineRow(headline, tuple(make_cell(model, headline) for model in models)) for headline in HEADLINES)
    return HeadlineTable(models, tuple(row for row in rows if any(cell.verdict for cell in row.cells)))


def make_cell(model: ModelSummary, headline: Headline) -> HeadlineCell:
    """A headline claim on a model."""
    verdict = next((verdict for verdict in model.headline if verdict.headline.number == headline.number), None)
    return HeadlineCell(model, verdict, () if verdict is None else tuple(_procedure_verdicts(verdict)))


def _procedure_verdicts(verdict: HeadlineVerdict) -> Iterator[ProcedureVerdict]:
    previous_reason = ""
    for procedure, outcome, rows in (
        ("published", verdict.published, verdict.published_rows),
        ("controlled", verdict.controlled, verdict.controlled_rows),
    ):
        row = find_deciding_row(rows, outcome)
        if outcome is not None and row is not None:
            reason = explain(row) if row.verdict == outcome else f"{ALONE}: {explain(row)}"
            yield ProcedureVerdict(procedure, outcome, row, "" if reason == previous_reason else reason)
            previous_reason = reason


def explain(row: Judgement) -> str:
    """The reason for a verdict in one line: the mechanism of a planted model, else the numbers or the failed gate.

    The mechanism explains the planted verdict. If another verdict came out, only the numbers explain it.
    """
    return shorten(row.because if row.because and row.as_expected else row.reason, MAX_REASON, placeholder=" ...")
