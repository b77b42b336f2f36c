"""The sections of the page: claims with their models side by side, figures and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from rebinding.paper.rows.order import place
from rebinding.report.drawn import Histogram, Strip, histogram, strip
from rebinding.report.figures.plates import PLATES, Plate
from rebinding.report.folder import Model, Run
from rebinding.report.outline import SECTIONS, Section, section_of
from rebinding.report.prompts import PromptPair, pairs
from rebinding.report.stopped import stopped
from rebinding.report.summary import standing
from rebinding.report.tables import Table, tables
from rebinding.verdicts.judgement import Judgement


@dataclass(frozen=True)
class Cell:
    """A claim on one model."""

    model: Model
    found: Judgement
    standing: str
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
    plate: Plate
    model: Model
    svg: Markup | None
    box: str = ""


Pictures = Mapping[tuple[str, str], Picture]
"""Every figure by its plate and model."""


@dataclass(frozen=True)
class Part:
    """A section with all that stands in it; claims that a gate has stopped on every model stand apart."""

    section: Section
    entries: tuple[Entry, ...]
    stopped: tuple[Entry, ...]
    figures: tuple[tuple[Plate, tuple[Picture, ...]], ...]
    tables: tuple[Table, ...]
    pairs: tuple[PromptPair, ...]


def in_order(claims: Sequence[Judgement]) -> list[Judgement]:
    """Section by section, in each as the paper has its sentences; both procedures of one stand together."""
    section = {one.key: number for number, one in enumerate(SECTIONS)}
    return sorted(claims, key=lambda one: (section[section_of(one.id)], place(one.id), one.id))


def parts(run: Run, pictures: Pictures) -> Iterator[Part]:
    """The sections that have anything to show."""
    every, listed, groups = in_order(run.claims), tables(run), stopped(run.claims)
    lost = {group.model for group in groups if group.whole}
    told = {(group.model, id) for group in groups for id in group.ids}
    for section in SECTIONS:
        ids = dict.fromkeys(one.id for one in every if section_of(one.id) == section.key)
        entries = [entry(run, id, pictures) for id in ids]
        apart = [one for one in entries if all((cell.found.model, one.id) in told for cell in one.cells)]
        figures = tuple(_figures(section, run, pictures, lost))
        if entries or (figures and section.key != "other"):
            here = tuple(table for table in listed if table.section == section.key)
            shown = tuple(one for one in entries if one not in apart)
            yield Part(section, shown, tuple(apart), figures, here, _pairs(run, entries))


def _pairs(run: Run, entries: Sequence[Entry]) -> tuple[PromptPair, ...]:
    """What the experiments of a section were run on: of each model every text once, with all that used it."""
    judged = [(cell.model, label) for one in entries for cell in one.cells for label in cell.found.evidence]
    by_model = {model.name: (model, [label for other, label in judged if other is model]) for model, _ in judged}
    return tuple(pair for model, labels in by_model.values() for pair in pairs(model, labels))


def _figures(
    section: Section, run: Run, pictures: Pictures, lost: set[str]
) -> Iterator[tuple[Plate, tuple[Picture, ...]]]:
    """A section's figures on every model, but for those on which nothing could be judged and nothing is to be drawn."""
    for plate in PLATES:
        here = [pictures[plate.key, model.name] for model in run.models]
        drawn = tuple(one for one in here if one.svg is not None or one.model.name not in lost)
        if plate.special and not any(one.svg for one in drawn):
            continue
        if plate.section == section.key and drawn:
            yield plate, drawn


def entry(run: Run, id: str, pictures: Pictures) -> Entry:
    """A claim with its models side by side."""
    cells = []
    for model in run.models:
        for one in run.of(model):
            if one.id == id:
                cells.append(cell(model, one, pictures))
    return Entry(id, cells[0].found, tuple(cells))


def cell(model: Model, one: Judgement, pictures: Pictures) -> Cell:
    """One claim on one model, with the figures that rest on its evidence."""
    used = [model.evidence[label] for label in one.evidence if label in model.evidence]
    beside = tuple(
        picture
        for plate in PLATES
        if plate.shows_any(used) and (picture := pictures[plate.key, model.name]).svg is not None
    )
    planted = model.about.get("kind") == "planted"
    run_on = next(iter(pairs(model, reversed(one.evidence))), None)  # gates come first, the sentence's own last
    return Cell(model, one, standing(one, planted=planted), strip(one), histogram(one.sample), beside, run_on)
