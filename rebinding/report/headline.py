"""The first table of the page: the headline claims, with all models of a run side by side."""

from __future__ import annotations

from dataclasses import dataclass

from rebinding.paper.headlines import HEADLINES, Headline
from rebinding.report.summary import ModelSummary, Summary
from rebinding.verdicts.headline import HeadlineVerdict


@dataclass(frozen=True)
class HeadlineRow:
    """A headline claim; None stands for a model on which nothing of it was judged."""

    headline: Headline
    cells: tuple[tuple[ModelSummary, HeadlineVerdict | None], ...]


@dataclass(frozen=True)
class HeadlineTable:
    """The models of which a headline claim was judged, and a row for each such claim."""

    models: tuple[ModelSummary, ...]
    rows: tuple[HeadlineRow, ...]


def headline_table(summary: Summary) -> HeadlineTable:
    """The table of a run; without rows, where no headline claim was judged."""
    models = tuple(model for model in summary.models if model.headline)
    by_model = {model.name: {found.headline.number: found for found in model.headline} for model in models}
    rows = (
        HeadlineRow(headline, tuple((model, by_model[model.name].get(headline.number)) for model in models))
        for headline in HEADLINES
    )
    return HeadlineTable(models, tuple(row for row in rows if any(found for _, found in row.cells)))
