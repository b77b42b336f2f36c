"""Figures as SVG, drawn once: kept in the store under all that they are drawn from.

That is a model's evidence, byte for byte, what is written down about it, and the source that draws. Without a store
every figure is drawn.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from markupsafe import Markup
from matplotlib.figure import Figure

from rebinding.evidence.notes import Note
from rebinding.evidence.request import digest
from rebinding.evidence.sources import code_hash
from rebinding.evidence.store import Store
from rebinding.report.figures.plates import Plate
from rebinding.report.figures.scales import alike
from rebinding.report.figures.svg import inline
from rebinding.report.folder import Model

FIGURES = "figures"
Group: TypeAlias = Sequence[tuple[Model, str]]
"""Models with the ids of their figures."""


@dataclass(frozen=True)
class Svg:
    """A figure's SVG and its view box."""

    svg: Markup
    box: str


def drawn(plate: Plate, models: Sequence[Model], names: Sequence[str], store: Store | None) -> list[Svg | None]:
    """The figure of every model under its id; None where it has no evidence for it. Those that share a scale belong
    together: what one of them shows moves the others."""
    each = list(zip(models, names, strict=True))
    groups = [each] if plate.shares else [[one] for one in each]
    return [found for group in groups for found in _of_group(plate, group, store)]


def _of_group(plate: Plate, group: Group, store: Store | None) -> list[Svg | None]:
    if store is None:
        return _draw(plate, group)
    models = [{"model": _content(model), "name": name} for model, name in group]
    key = digest({"models": models, "plate": plate.key, "shows": plate.shows, **_hand()})
    found = json.loads(store.remember(Note, FIGURES, key, _as_note(lambda: _draw(plate, group))).text)
    # our own figures, drawn before
    return [None if one is None else Svg(Markup(one["svg"]), one["box"]) for one in found]


def _draw(plate: Plate, group: Group) -> list[Svg | None]:
    figures = [plate.draw(model) for model, _ in group]
    alike(figures, plate.shares)
    return [_as_svg(plate, one, name) for one, (_, name) in zip(figures, group, strict=True)]


def _as_svg(plate: Plate, figure: Figure | None, name: str) -> Svg | None:
    if figure is None:
        return None
    width, height = 72 * figure.get_size_inches()
    return Svg(inline(figure, name, alt=plate.shows), f"0 0 {width:g} {height:g}")


def _as_note(draw: Callable[[], list[Svg | None]]) -> Callable[[], Note]:
    def made() -> Note:
        told = [None if one is None else {"svg": str(one.svg), "box": one.box} for one in draw()]
        return Note(json.dumps(told))

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
