"""Render the page of a report: one self-contained HTML file, made from the report's folder alone.

Rendering twice gives the same bytes: nothing depends on the clock, and everything has a fixed order.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rebinding.evidence.shards import put_in_place, write_text
from rebinding.evidence.store import Store
from rebinding.report.differences import find_differences
from rebinding.report.figures.draw import FIGURES, draw_all
from rebinding.report.folder import Model, Run, read
from rebinding.report.headline import headline_table
from rebinding.report.mechanisms import explain_mechanisms
from rebinding.report.parts import Picture, Pictures, parts
from rebinding.report.provenance import SEEDS, Listing, list_evidence
from rebinding.report.shapes import HEIGHT, WIDTH, format_number
from rebinding.report.summary import LETTERS, MARKS, MEANINGS, ModelSummary, format_count

PAGE = "index.html"


@dataclass(frozen=True)
class Card:
    """A model at the top of the page."""

    model: Model
    summary: ModelSummary
    listing: Listing


def render(folder: Path, store: Store | None = None) -> Path:
    """Write the page of a report's folder and return its path. Figures come from the store if it has them.

    The page replaces an older one as a whole, or not at all. A link at its place is replaced, not followed.
    """
    path, content = folder / PAGE, html(read(folder), store)
    put_in_place({path: lambda temporary: write_text(temporary, content)})
    return path


def html(run: Run, store: Store | None = None) -> str:
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
            Card(model, summary, list_evidence(model))
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


def draw(run: Run, store: Store | None) -> Pictures:
    """Every figure once, by its key and model."""
    pictures: dict[tuple[str, str], Picture] = {}
    for spec in FIGURES:
        names = [f"figure-{spec.key}-{token(model.name)}" for model in run.models]
        figures = draw_all(spec, run.models, [f"{name}-svg" for name in names], store)
        for model, name, figure in zip(run.models, names, figures, strict=True):
            svg, box = (None, "") if figure is None else (figure.svg, figure.box)
            pictures[spec.key, model.name] = Picture(name, spec, model, svg, box)
    return pictures
