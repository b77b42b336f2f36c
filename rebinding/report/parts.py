"""The sections of the page: claims with their models side by side, figures and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from rebinding.experiments.figure import FigureSpec
from rebinding.report.drawn import Histogram, Strip, histogram, strip
from rebinding.report.figures import FIGURES
from rebinding.report.folder import Model, Run
from rebinding.report.outline import SECTIONS, Section
from rebinding.report.prompts import PromptPair, pairs
from rebinding.report.summary import ModelSummary, in_order
from rebinding.report.tables import Table, tables
from rebinding.verdicts.judgement import Judgement


@dataclass(frozen=True)
class Cell:
    """A claim on one model."""

    model: Model
    summary: ModelSummary
    found: Judgement
    strip: Strip | None
    histogram: Histogram | None
    pictures: tuple[Picture, ...]
    pair: PromptPair | None


@dataclass(frozen=True)
class Entry:
    """A claim, on every model on which it was judged."""

    id: str
    first: Judgement
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Picture:
    """A figure of one model; `svg` None where it has no evidence for it."""

    id: str
    spec: FigureSpec
    model: Model
    svg: Markup | None
    box: str = ""


Pictures = Mapping[tuple[str, str], Picture]
"""Every figure by its spec and model."""


@dataclass(frozen=True)
class Part:
    """A section with all that stands in it; claims that a gate has stopped on every model stand apart."""

    section: Section
    entries: tuple[Entry, ...]
    stopped: tuple[Entry, ...]
    figures: tuple[tuple[FigureSpec, tuple[Picture, ...]], ...]
    tables: tuple[Table, ...]
    pairs: tuple[PromptPair, ...]


def parts(run: Run, pictures: Pictures) -> Iterator[Part]:
    """The sections that have anything to show."""
    listed, models = tables(run), run.summary.models
    for section in SECTIONS:
        rows = [row for model in models for row in model.rows if row.section == section.key]
        entries = [entry(run, id, pictures) for id in dict.fromkeys(row.id for row in in_order(rows))]
        apart = [one for one in entries if all(one.id in cell.summary.stopped_ids for cell in one.cells)]
        figures = tuple(_figures(section, run, pictures))
        if entries or (figures and section.key != "other"):
            here = tuple(table for table in listed if table.section == section.key)
            shown = tuple(one for one in entries if one not in apart)
            yield Part(section, shown, tuple(apart), figures, here, _pairs(run, entries))


def _pairs(run: Run, entries: Sequence[Entry]) -> tuple[PromptPair, ...]:
    """What the experiments of a section were run on: of each model every text once, with all that used it."""
    judged = [(cell.model, label) for one in entries for cell in one.cells for label in cell.found.evidence]
    by_model = {model.name: (model, [label for other, label in judged if other is model]) for model, _ in judged}
    return tuple(pair for model, labels in by_model.values() for pair in pairs(model, labels))


def _figures(section: Section, run: Run, pictures: Pictures) -> Iterator[tuple[FigureSpec, tuple[Picture, ...]]]:
    """A section's figures on every model, but for those on which nothing could be judged and nothing is to be drawn."""
    lost = {model.name for model in run.summary.models if model.is_lost}
    for spec in FIGURES:
        here = [pictures[spec.key, model.name] for model in run.models]
        drawn = tuple(one for one in here if one.svg is not None or one.model.name not in lost)
        if spec.special and not any(one.svg for one in drawn):
            continue
        if spec.section == section.key and drawn:
            yield spec, drawn


def entry(run: Run, id: str, pictures: Pictures) -> Entry:
    """A claim with its models side by side."""
    cells = [
        cell(model, summary, row, pictures)
        for model, summary in zip(run.models, run.summary.models, strict=True)
        for row in summary.rows
        if row.id == id
    ]
    return Entry(id, cells[0].found, tuple(cells))


def cell(model: Model, summary: ModelSummary, row: Judgement, pictures: Pictures) -> Cell:
    """One claim on one model, with the figures that rest on its evidence."""
    used = [model.evidence[label] for label in row.evidence if label in model.evidence]
    beside = tuple(
        picture
        for spec in FIGURES
        if spec.shows_any(used) and (picture := pictures[spec.key, model.name]).svg is not None
    )
    pair = next(iter(pairs(model, reversed(row.evidence))), None)  # gates come first, the sentence's own last
    return Cell(model, summary, row, strip(row), histogram(row.sample), beside, pair)
