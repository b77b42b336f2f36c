"""Render the page of a report: one self-contained HTML file, made from the report's folder alone.

Its sections have claims with their models side by side, figures and tables.

Rendering twice gives the same bytes: nothing depends on the clock, and everything has a fixed order.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rebinding.evidence.shards import put_in_place, write_text
from rebinding.evidence.store import Store
from rebinding.report.compare import find_differences
from rebinding.report.figures.draw import FIGURES, draw_all
from rebinding.report.figures.figure import FigureSpec
from rebinding.report.folder import ReportedModel, ReportedRun, read
from rebinding.report.headline import explain_mechanisms, headline_table
from rebinding.report.shapes import HEIGHT, WIDTH, Histogram, Strip, format_number, histogram, strip
from rebinding.report.summary import LETTERS, MARKS, MEANINGS, SECTIONS, ModelSummary, Section, format_count, sort_rows
from rebinding.report.tables import SEEDS, Listing, PromptPair, Table, list_evidence, pairs, tables
from rebinding.verdicts.judgement import Judgement


@dataclass(frozen=True)
class MatrixCell:
    """A claim on one model."""

    model: ReportedModel
    summary: ModelSummary
    judgement: Judgement
    strip: Strip | None
    histogram: Histogram | None
    pictures: tuple[Picture, ...]
    pair: PromptPair | None


@dataclass(frozen=True)
class ClaimEntry:
    """A claim on every model on which it was judged."""

    id: str
    first: Judgement
    cells: tuple[MatrixCell, ...]


@dataclass(frozen=True)
class Picture:
    """A figure of one model; `svg` is None if the model has no evidence for it."""

    id: str
    spec: FigureSpec
    model: ReportedModel
    svg: Markup | None
    box: str = ""


Pictures = Mapping[tuple[str, str], Picture]
"""Every figure by its spec and model."""


@dataclass(frozen=True)
class PageSection:
    """A section with all its content; `stopped` has the claims that a gate stopped on every model."""

    section: Section
    entries: tuple[ClaimEntry, ...]
    stopped: tuple[ClaimEntry, ...]
    figures: tuple[tuple[FigureSpec, tuple[Picture, ...]], ...]
    tables: tuple[Table, ...]
    pairs: tuple[PromptPair, ...]


def parts(run: ReportedRun, pictures: Pictures) -> Iterator[PageSection]:
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
            yield PageSection(section, valid, tuple(stopped), figures, section_tables, _pairs(run, entries))


def _pairs(run: ReportedRun, entries: Sequence[ClaimEntry]) -> tuple[PromptPair, ...]:
    """The prompts of a section's experiments: each text once per model, with all experiments that used it."""
    by_model: dict[str, tuple[ReportedModel, list[str]]] = {}
    for cell in (cell for entry in entries for cell in entry.cells if cell.judgement.evidence):
        by_model.setdefault(cell.model.name, (cell.model, []))[1].extend(cell.judgement.evidence)
    return tuple(pair for model, labels in by_model.values() for pair in pairs(model, labels))


def _figures(
    section: Section, run: ReportedRun, pictures: Pictures
) -> Iterator[tuple[FigureSpec, tuple[Picture, ...]]]:
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


def make_entry(run: ReportedRun, id: str, pictures: Pictures) -> ClaimEntry:
    """A claim with its models side by side."""
    cells = [
        make_cell(model, summary, row, pictures)
        for model, summary in zip(run.models, run.summary.models, strict=True)
        for row in summary.rows
        if row.id == id
    ]
    return ClaimEntry(id, cells[0].judgement, tuple(cells))


def make_cell(model: ReportedModel, summary: ModelSummary, row: Judgement, pictures: Pictures) -> MatrixCell:
    """One claim on one model, with the figures that rest on its evidence."""
    evidence = [model.evidence[label] for label in row.evidence if label in model.evidence]
    figures = tuple(
        picture
        for spec in FIGURES
        if spec.shows_any(evidence) and (picture := pictures[spec.key, model.name]).svg is not None
    )
    pair = next(iter(pairs(model, reversed(row.evidence))), None)  # evidence of gates comes first
    return MatrixCell(model, summary, row, strip(row), histogram(row.sample), figures, pair)


PAGE = "index.html"


@dataclass(frozen=True)
class PageCard:
    """A model at the top of the page."""

    model: ReportedModel
    summary: ModelSummary
    listing: Listing


def render(folder: Path, store: Store | None = None) -> Path:
    """Write the page of a report's folder and return its path. Figures come from the store if it has them.

    The page replaces an older one as a whole, or not at all. A link at its place is replaced, not followed.
    """
    path, content = folder / PAGE, html(read(folder), store)
    put_in_place({path: lambda temporary: write_text(temporary, content)})
    return path


def html(run: ReportedRun, store: Store | None = None) -> str:
    """The page as text."""
    page = Environment(
        loader=PackageLoader("rebinding.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page.filters |= {"number": format_number, "token": token, "count": format_count}
    pictures = draw(run, store)
    script = files("rebinding.report").joinpath("templates/script.js").read_text("utf-8")
    return page.get_template("page.html").render(
        run=run,
        cards=[
            PageCard(model, summary, list_evidence(model))
            for model, summary in zip(run.models, run.summary.models, strict=True)
        ],
        explanation=explain_mechanisms(run),
        headline=headline_table(run.summary),
        parts=list(parts(run, pictures)),
        differences=find_differences(run),
        settings=json.dumps(dict(run.settings), sort_keys=True),
        marks=MARKS,
        letters=LETTERS,
        meanings=MEANINGS,
        size=(WIDTH, HEIGHT),
        format_setting=format_setting,
        seeds=SEEDS,
        script=Markup(script),  # our own file; only this and our own figures are not escaped
        script_hash=f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
    )


def token(name: str) -> str:
    """A name as one word that is valid in an attribute or an address, whatever its characters."""
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def format_setting(value: Any) -> str:
    """A setting on one line."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def draw(run: ReportedRun, store: Store | None) -> Pictures:
    """Every figure once, by its key and model."""
    pictures: dict[tuple[str, str], Picture] = {}
    for spec in FIGURES:
        names = [f"figure-{spec.key}-{token(model.name)}" for model in run.models]
        figures = draw_all(spec, run.models, [f"{name}-svg" for name in names], store)
        for model, name, figure in zip(run.models, names, figures, strict=True):
            svg, box = (None, "") if figure is None else (figure.svg, figure.box)
            pictures[spec.key, model.name] = Picture(name, spec, model, svg, box)
    return pictures
