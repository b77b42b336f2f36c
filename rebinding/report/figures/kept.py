"""Figures as SVG, drawn once: kept in the store under all that they are drawn from.

That is a model's evidence, byte for byte, what is written down about it, and the source that draws. Without a store
every figure is drawn.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from rebinding.evidence.notes import Note
from rebinding.evidence.request import digest
from rebinding.evidence.sources import code_hash
from rebinding.evidence.store import Store
from rebinding.report.figures.plates import Plate
from rebinding.report.figures.svg import inline
from rebinding.report.folder import Model

FIGURES = "figures"


@dataclass(frozen=True)
class Svg:
    """A figure's SVG and its view box."""

    svg: Markup
    box: str


def drawn(plate: Plate, model: Model, name: str, store: Store | None) -> Svg | None:
    """The figure of a model under the id `name`; None where it has no evidence for it."""
    if store is None:
        return _draw(plate, model, name)
    key = digest({"model": _content(model), "plate": plate.key, "name": name, "shows": plate.shows, **_hand()})
    found = json.loads(store.remember(Note, FIGURES, key, _as_note(lambda: _draw(plate, model, name))).text)
    return None if found is None else Svg(Markup(found["svg"]), found["box"])  # our own figure, drawn before


def _draw(plate: Plate, model: Model, name: str) -> Svg | None:
    figure = plate.draw(model)
    if figure is None:
        return None
    width, height = 72 * figure.get_size_inches()
    return Svg(inline(figure, name, alt=plate.shows), f"0 0 {width:g} {height:g}")


def _as_note(draw: Callable[[], Svg | None]) -> Callable[[], Note]:
    def made() -> Note:
        figure = draw()
        return Note(json.dumps(None if figure is None else {"svg": str(figure.svg), "box": figure.box}))

    return made


def _content(model: Model) -> dict[str, Any]:
    """All that a figure can look at, but for how long things took."""
    about = {name: value for name, value in model.about.items() if name != "evidence"}
    return {"about": about, "evidence": model.digests}


def _hand() -> dict[str, str]:
    """What draws: our own source and the library."""
    return {
        "code": code_hash("rebinding.report.figures.plates", "rebinding.report.figures.svg"),
        "matplotlib": importlib.metadata.version("matplotlib"),
    }
