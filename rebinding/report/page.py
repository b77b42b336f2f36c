"""The page a person reads: one file that needs nothing else, made from a report's folder alone.

Rendering twice gives the same bytes: nothing here looks at a clock, and everything is in a stated order.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rebinding.claim import Judgement
from rebinding.report import differences
from rebinding.report.drawn import HEIGHT, WIDTH, Histogram, Strip, histogram, number, strip
from rebinding.report.folder import Model, Run, read
from rebinding.report.outline import SECTIONS, Section, section_of
from rebinding.report.plates import PLATES, Plate
from rebinding.report.provenance import SEEDS, Origins, origins
from rebinding.report.summary import MARKS, Summary, plural, standing, summarise
from rebinding.report.svg import inline
from rebinding.report.tables import Table, tables

PAGE = "index.html"


@dataclass(frozen=True)
class Cell:
    """A claim on one model."""

    model: Model
    found: Judgement
    standing: str
    strip: Strip | None
    histogram: Histogram | None
    pictures: tuple[Picture, ...]


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


@dataclass(frozen=True)
class Part:
    """A section with all that stands in it."""

    section: Section
    entries: tuple[Entry, ...]
    figures: tuple[tuple[Plate, tuple[Picture, ...]], ...]
    tables: tuple[Table, ...]


@dataclass(frozen=True)
class Card:
    """A model at the top of the page."""

    model: Model
    planted: bool
    summary: Summary
    origins: Origins


def render(folder: Path) -> Path:
    """Write the page of a report's folder, and say where it is."""
    path = folder / PAGE
    path.write_text(html(read(folder)), encoding="utf-8", newline="\n")
    return path


def html(run: Run) -> str:
    """The page as text."""
    page = Environment(
        loader=PackageLoader("rebinding.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page.filters |= {"number": number, "token": token, "plural": plural}
    pictures = draw(run)
    script = files("rebinding.report").joinpath("templates/script.js").read_text("utf-8")
    return page.get_template("page.html").render(
        run=run,
        cards=cards(run),
        parts=list(parts(run, pictures)),
        differences=differences.apply(run),
        settings=json.dumps(dict(run.settings), sort_keys=True),
        marks=MARKS,
        size=(WIDTH, HEIGHT),
        plain=plain,
        seeds=SEEDS,
        script=Markup(script),  # our own file, and the only thing that is not escaped beside our own figures
        script_hash=f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
    )


def token(name: str) -> str:
    """A name as one word that may stand in an attribute or an address, whatever the name is made of."""
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def plain(value: Any) -> str:
    """A setting on one line."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def cards(run: Run) -> list[Card]:
    """The models, in the order of the run."""
    found = []
    for model in run.models:
        planted = model.about.get("kind") == "planted"
        claims = in_order(run.of(model))
        found.append(Card(model, planted, summarise(claims, planted=planted), origins(model)))
    return found


def in_order(claims: Sequence[Judgement]) -> list[Judgement]:
    """By the outline, then as they come in the alphabet."""
    place = {one.key: number for number, one in enumerate(SECTIONS)}
    return sorted(claims, key=lambda one: (place[section_of(one.id)], one.id))


def draw(run: Run) -> dict[tuple[str, str], Picture]:
    """Every figure once, by its plate and model."""
    found = {}
    for plate in PLATES:
        for model in run.models:
            name = f"figure-{plate.key}-{token(model.name)}"
            figure = plate.draw(model)
            if figure is None:
                found[plate.key, model.name] = Picture(name, plate, model, None)
                continue
            width, height = 72 * figure.get_size_inches()
            svg = inline(figure, f"{name}-svg", alt=plate.shows)
            found[plate.key, model.name] = Picture(name, plate, model, svg, f"0 0 {width:g} {height:g}")
    return found


def parts(run: Run, pictures: dict[tuple[str, str], Picture]) -> Iterator[Part]:
    """The sections that have anything to show."""
    every, listed = in_order(run.claims), tables(run)
    for section in SECTIONS:
        ids = dict.fromkeys(one.id for one in every if section_of(one.id) == section.key)
        entries = tuple(entry(run, id, pictures) for id in ids)
        figures = tuple(
            (plate, tuple(pictures[plate.key, model.name] for model in run.models))
            for plate in PLATES
            if plate.section == section.key
        )
        if entries or (figures and section.key != "other"):
            here = tuple(table for table in listed if table.section == section.key)
            yield Part(section, entries, figures, here)


def entry(run: Run, id: str, pictures: dict[tuple[str, str], Picture]) -> Entry:
    """A claim with its models side by side."""
    cells = []
    for model in run.models:
        for one in run.of(model):
            if one.id == id:
                cells.append(cell(model, one, pictures))
    return Entry(id, cells[0].found, tuple(cells))


def cell(model: Model, one: Judgement, pictures: dict[tuple[str, str], Picture]) -> Cell:
    """One claim on one model, with the figures that rest on its evidence."""
    used = [name for name in one.evidence.split(", ") if name]
    beside = tuple(
        picture
        for plate in PLATES
        if plate.rests_on(used) and (picture := pictures[plate.key, model.name]).svg is not None
    )
    planted = model.about.get("kind") == "planted"
    return Cell(model, one, standing(one, planted=planted), strip(one), histogram(one.sample), beside)
