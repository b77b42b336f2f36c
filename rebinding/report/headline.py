"""The first table of the page: the headline claims on all models of a run."""

from __future__ import annotations

from dataclasses import dataclass

from rebinding.paper.headlines import HEADLINES, Headline
from rebinding.report.summary import ModelSummary, Summary
from rebinding.verdicts.headline import HeadlineVerdict


@dataclass(frozen=True)
class HeadlineRow:
    """A headline claim with its verdict on each model; None on a model that judged none of its rows."""

    headline: Headline
    cells: tuple[tuple[ModelSummary, HeadlineVerdict | None], ...]


@dataclass(frozen=True)
class HeadlineTable:
    """The models with a judged headline claim, and a row for each such claim."""

    models: tuple[ModelSummary, ...]
    rows: tuple[HeadlineRow, ...]


def headline_table(summary: Summary) -> HeadlineTable:
    """The table of a run; it has no rows if no headline claim was judged."""
    models = tuple(model for model in summary.models if model.headline)
    by_model = {model.name: {verdict.headline.number: verdict for verdict in model.headline} for model in models}
    rows = (
        HeadlineRow(headline, tuple((model, by_model[model.name].get(headline.number)) for model in models))
        for headline in HEADLINES
    )
    return HeadlineTable(models, tuple(row for row in rows if any(verdict for _, verdict in row.cells)))
