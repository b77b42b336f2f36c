"""Render the page of a report: one self-contained HTML file, made from the report's folder alone.

Its sections have claims with their models side by side, figures and tables.

Rendering twice gives the same bytes: nothing depends on the clock, and everything has a fixed order.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rebinding.evidence.shards import put_in_place, write_text
from rebinding.evidence.store import Store
from rebinding.paper.headlines import AUTHORS, TITLE
from rebinding.report.compare import ReportComparison, find_differences
from rebinding.report.figures.draw import FIGURES, draw_all
from rebinding.report.figures.figure import FigureSpec
from rebinding.report.folder import ReportedModel, ReportedRun, read
from rebinding.report.headline import explain_mechanisms, headline_table
from rebinding.report.shapes import HEIGHT, WIDTH, Axis, Histogram, Strip, axis_of, histogram, strip
from rebinding.report.summary import LETTERS, MARKS, MEANINGS, SECTIONS, ModelSummary, Section, format_count, sort_rows
from rebinding.report.tables import SEEDS, Listing, PromptPair, Table, list_evidence, pairs, tables
from rebinding.verdicts.judgement import Judgement, describe_means, describe_numbers
from rebinding.verdicts.quantities import format_interval, format_number, format_p_value


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

    @property
    def is_stopped(self) -> bool:
        """Whether a gate stopped it together with others."""
        return self.judgement.id in self.summary.stopped_ids

    @property
    def numbers(self) -> str:
        return describe_numbers(self.judgement)

    @property
    def means(self) -> str:
        return describe_means(self.judgement)


@dataclass(frozen=True)
class ProcedureGroup:
    """A claim under one procedure, on every model on which it was judged so."""

    id: str
    first: Judgement
    cells: tuple[MatrixCell, ...]


@dataclass(frozen=True)
class ClaimEntry:
    """A claim under both procedures; all its estimates stand on one axis."""

    id: str
    first: Judgement
    groups: tuple[ProcedureGroup, ...]
    axis: Axis | None

    @property
    def cells(self) -> tuple[MatrixCell, ...]:
        return tuple(cell for group in self.groups for cell in group.cells)


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


OWN = "other"
"""The section of claims that are not the paper's."""


@dataclass(frozen=True)
class PageSection:
    """A section with all its content. `stopped` has the claims that a gate stopped on every model, and `missing` says
    why figures could not be drawn."""

    section: Section
    entries: tuple[ClaimEntry, ...]
    stopped: tuple[ClaimEntry, ...]
    figures: tuple[tuple[FigureSpec, tuple[Picture, ...]], ...]
    missing: tuple[str, ...]
    tables: tuple[Table, ...]
    pairs: tuple[PromptPair, ...]


def parts(run: ReportedRun, pictures: Pictures) -> Iterator[PageSection]:
    """The sections that have anything to show."""
    all_tables, models = tables(run), run.summary.models
    for section in SECTIONS:
        rows = sort_rows(row for model in models for row in model.rows if row.section == section.key)
        entries = [make_entry(run, id, pictures) for id in dict.fromkeys(row.sentence or row.id for row in rows)]
        stopped = [entry for entry in entries if all(cell.is_stopped for cell in entry.cells)]
        if entries:
            figures, missing = tuple(_figures(section, run, pictures)), tuple(_missing(section, run, pictures))
            section_tables = tuple(table for table in all_tables if table.section == section.key)
            valid = tuple(entry for entry in entries if entry not in stopped)
            shown = (valid, tuple(stopped), figures, missing, section_tables)
            yield PageSection(section, *shown, _pairs(run, entries))


def _pairs(run: ReportedRun, entries: Sequence[ClaimEntry]) -> tuple[PromptPair, ...]:
    """The prompts of a section's experiments: each text once per model, with all experiments that used it."""
    by_model: dict[str, tuple[ReportedModel, list[str]]] = {}
    for cell in (cell for entry in entries for cell in entry.cells if cell.judgement.evidence):
        by_model.setdefault(cell.model.name, (cell.model, []))[1].extend(cell.judgement.evidence)
    return tuple(pair for model, labels in by_model.values() for pair in pairs(model, labels))


def _figures(
    section: Section, run: ReportedRun, pictures: Pictures
) -> Iterator[tuple[FigureSpec, tuple[Picture, ...]]]:
    """The figures of a section that some model has evidence for, on these models."""
    for spec in (spec for spec in FIGURES if spec.section == section.key):
        of_models = (pictures[spec.key, model.name] for model in run.models)
        with_evidence = tuple(picture for picture in of_models if picture.svg is not None)
        if with_evidence:
            yield spec, with_evidence


def _missing(section: Section, run: ReportedRun, pictures: Pictures) -> Iterator[str]:
    """A line for each model about figures of a section that could not be drawn: the gate that failed, or the command
    that runs their experiments. The top of the page says why nothing was judged on a model."""
    for model, summary in zip(run.models, run.summary.models, strict=True):
        specs = [spec for spec in FIGURES if spec.section == section.key and not spec.special]
        titles = [spec.title for spec in specs if pictures[spec.key, model.name].svg is None]
        rows = [row for row in summary.rows if row.section == section.key]
        if titles and rows and not summary.is_stopped:
            gates = ", ".join(dict.fromkeys(row.gate for row in rows if row.gate))
            command = shlex.join(["pytest", "claims", "--model", model.name, "-k", section.ids])
            reason = f"gates failed ({gates})" if gates else f"`{command} --report DIR` runs what they need"
            yield f"Not drawn on {model.name}: {', '.join(titles)}. Reason: {reason}."


def make_entry(run: ReportedRun, sentence: str, pictures: Pictures) -> ClaimEntry:
    """A claim with its procedures and models below each other."""
    rows = [
        (model, summary, row)
        for model, summary in zip(run.models, run.summary.models, strict=True)
        for row in summary.rows
        if (row.sentence or row.id) == sentence
    ]
    axis = axis_of([row for _, _, row in rows])
    ids = sorted({row.id for _, _, row in rows}, key=lambda id: (id != sentence, id))
    by_id = {id: tuple(make_cell(*parts, pictures, axis) for parts in rows if parts[2].id == id) for id in ids}
    groups = tuple(ProcedureGroup(id, cells[0].judgement, cells) for id, cells in by_id.items())
    return ClaimEntry(ids[0], groups[0].first, groups, axis)


def make_cell(
    model: ReportedModel, summary: ModelSummary, row: Judgement, pictures: Pictures, axis: Axis | None
) -> MatrixCell:
    """One claim on one model, with the figures that rest on its evidence."""
    evidence = [model.evidence[label] for label in row.evidence if label in model.evidence]
    figures = tuple(
        picture
        for spec in FIGURES
        if spec.shows_any(evidence) and (picture := pictures[spec.key, model.name]).svg is not None
    )
    pair = next(iter(pairs(model, reversed(row.evidence))), None)  # evidence of gates comes first
    return MatrixCell(model, summary, row, strip(row, axis), histogram(row.sample), figures, pair)


PAGE = "index.html"


@dataclass(frozen=True)
class PageCard:
    """A model at the top of the page."""

    model: ReportedModel
    summary: ModelSummary
    listing: Listing


def render(folder: Path, store: Store | None = None, *, earlier: Path | None = None) -> Path:
    """Write the page of a report's folder and return its path. Figures come from the store if it has them. With the
    folder of an earlier report the page says what has changed since.

    The page replaces an older one as a whole, or not at all. A link at its place is replaced, not followed.
    """
    run = read(folder)
    changes = None if earlier is None else ReportComparison(read(earlier), run).plain()
    path, content = folder / PAGE, html(run, store, changes)
    put_in_place({path: lambda temporary: write_text(temporary, content)})
    return path


def html(run: ReportedRun, store: Store | None = None, comparison: Mapping[str, Any] | None = None) -> str:
    """The page as text. `comparison` is that with an earlier report (`ReportComparison.plain`)."""
    page = Environment(
        loader=PackageLoader("rebinding.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page.filters |= {"number": format_number, "p_value": format_p_value, "token": token, "count": format_count}
    page.globals |= {"interval": format_interval, "title": TITLE, "authors": AUTHORS}
    pictures = draw(run, store)
    sections = list(parts(run, pictures))
    script = files("rebinding.report").joinpath("templates/script.js").read_text("utf-8")
    return page.get_template("page.html").render(
        run=run,
        cards=[
            PageCard(model, summary, list_evidence(model))
            for model, summary in zip(run.models, run.summary.models, strict=True)
        ],
        explanation=explain_mechanisms(run),
        headline=headline_table(run.summary),
        comparison=comparison,
        parts=sections,
        is_of_paper=any(part.section.key != OWN for part in sections),
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
