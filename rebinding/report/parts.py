"""Build the sections of the page: claims with their models side by side, figures and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from rebinding.report.figures.draw import FIGURES
from rebinding.report.figures.figure import FigureSpec
from rebinding.report.folder import Model, Run
from rebinding.report.outline import SECTIONS, Section
from rebinding.report.prompts import PromptPair, pairs
from rebinding.report.shapes import Histogram, Strip, histogram, strip
from rebinding.report.summary import ModelSummary, sort_rows
from rebinding.report.tables import Table, tables
from rebinding.verdicts.judgement import Judgement


@dataclass(frozen=True)
class Cell:
    """A claim on one model."""

    model: Model
    summary: ModelSummary
    judgement: Judgement
    strip: Strip | None
    histogram: Histogram | None
    pictures: tuple[Picture, ...]
    pair: PromptPair | None


@dataclass(frozen=True)
class Entry:
    """A claim on every model on which it was judged."""

    id: str
    first: Judgement
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Picture:
    """A figure of one model; `svg` is None if the model has no evidence for it."""

    id: str
    spec: FigureSpec
    model: Model
    svg: Markup | None
    box: str = ""


Pictures = Mapping[tuple[str, str], Picture]
"""Every figure by its spec and model."""


@dataclass(frozen=True)
class Part:
    """A section with all its content; `stopped` has the claims that a gate stopped on every model."""

    section: Section
    entries: tuple[Entry, ...]
    stopped: tuple[Entry, ...]
    figures: tuple[tuple[FigureSpec, tuple[Picture, ...]], ...]
    tables: tuple[Table, ...]
    pairs: tuple[PromptPair, ...]


def parts(run: Run, pictures: Pictures) -> Iterator[Part]:
    """The sections that have anything to show."""
    all_tables, models = tables(run), run.summary.models
    for section in SECTIONS:
        rows = [row for model in models for row in model.rows if row.section == section.key]
        entries = [make_entry(run, id, pictures) for id in dict.fromkeys(row.id for row in sort_rows(rows))]
        stopped = [entry for entry in entries if all(entry.id in cell.summary.stopped_ids for cell in entry.cells)]
        figures = tuple(_figures(section, run, pictures))
        if entries or (figures and section.key != "other"):
            section_tables = tuple(table for table in all_tables if table.section == section.key)
            valid = tuple(entry for entry in entries if entry not in stopped)
            yield Part(section, valid, tuple(stopped), figures, section_tables, _pairs(run, entries))


def _pairs(run: Run, entries: Sequence[Entry]) -> tuple[PromptPair, ...]:
    """The prompts of a section's experiments: each text once per model, with all experiments that used it."""
    by_model: dict[str, tuple[Model, list[str]]] = {}
    for cell in (cell for entry in entries for cell in entry.cells if cell.judgement.evidence):
        by_model.setdefault(cell.model.name, (cell.model, []))[1].extend(cell.judgement.evidence)
    return tuple(pair for model, labels in by_model.values() for pair in pairs(model, labels))


def _figures(section: Section, run: Run, pictures: Pictures) -> Iterator[tuple[FigureSpec, tuple[Picture, ...]]]:
    """A section's figures on every model, without models on which nothing was judged and nothing can be drawn."""
    stopped_models = {model.name for model in run.summary.models if model.is_stopped}
    for spec in FIGURES:
        candidates = (pictures[spec.key, model.name] for model in run.models)
        figures_to_show = tuple(
            figure for figure in candidates if figure.svg is not None or figure.model.name not in stopped_models
        )
        if spec.special and not any(figure.svg for figure in figures_to_show):
            continue
        if spec.section == section.key and figures_to_show:
            yield spec, figures_to_show


def make_entry(run: Run, id: str, pictures: Pictures) -> Entry:
    """A claim with its models side by side."""
    cells = [
        make_cell(model, summary, row, pictures)
        for model, summary in zip(run.models, run.summary.models, strict=True)
        for row in summary.rows
        if row.id == id
    ]
    return Entry(id, cells[0].judgement, tuple(cells))


def make_cell(model: Model, summary: ModelSummary, row: Judgement, pictures: Pictures) -> Cell:
    """One claim on one model, with the figures that rest on its evidence."""
    evidence = [model.evidence[label] for label in row.evidence if label in model.evidence]
    figures = tuple(
        picture
        for spec in FIGURES
        if spec.shows_any(evidence) and (picture := pictures[spec.key, model.name]).svg is not None
    )
    pair = next(iter(pairs(model, reversed(row.evidence))), None)  # evidence of gates comes first
    return Cell(model, summary, row, strip(row), histogram(row.sample), figures, pair)
