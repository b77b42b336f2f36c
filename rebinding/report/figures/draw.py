"""Draw the figures of all sections as SVG, each once: the store keeps a figure under the key of its content.

The key has the model's evidence, byte for byte, its description, and the source code that draws. Without a store every
figure is drawn anew.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from markupsafe import Markup
from matplotlib.figure import Figure

from rebinding.evidence.request import digest
from rebinding.evidence.sources import code_hash
from rebinding.evidence.store import Note, Store
from rebinding.report.figures import binding, circuits, roles, tracing
from rebinding.report.figures.figure import FigureSpec
from rebinding.report.folder import Model
from rebinding.report.svg import inline, share_limits

STORE_NAME = "figures"
Group: TypeAlias = Sequence[tuple[Model, str]]
"""Models with the ids of their figures."""


MODULES = (binding, circuits, roles, tracing)
FIGURES: tuple[FigureSpec, ...] = (
    *binding.FIGURES,
    *circuits.CIRCUIT_FIGURES,
    *circuits.PATH_FIGURES,
    *roles.FIGURES,
    *circuits.SEARCH_FIGURES,
    *tracing.FIGURES,
)


@dataclass(frozen=True)
class Svg:
    """A figure's SVG and its view box."""

    svg: Markup
    box: str


def draw_all(spec: FigureSpec, models: Sequence[Model], names: Sequence[str], store: Store | None) -> list[Svg | None]:
    """The figure of every model under its id; None for a model without evidence for it. Figures that share a scale are
    drawn together, because each affects the limits of the others."""
    pairs = list(zip(models, names, strict=True))
    groups = [pairs] if spec.shares else [[pair] for pair in pairs]
    return [figure for group in groups for figure in _figures_of_group(spec, group, store)]


def _figures_of_group(spec: FigureSpec, group: Group, store: Store | None) -> list[Svg | None]:
    if store is None:
        return _draw_group(spec, group)
    models = [{"model": _content(model), "name": name} for model, name in group]
    key = digest({"models": models, "spec": spec.key, "shows": spec.shows, **_drawing_code()})
    figures = json.loads(store.remember(Note, STORE_NAME, key, _as_note(lambda: _draw_group(spec, group))).text)
    # Markup is safe: our own code drew these
    return [None if figure is None else Svg(Markup(figure["svg"]), figure["box"]) for figure in figures]


def _draw_group(spec: FigureSpec, group: Group) -> list[Svg | None]:
    figures = [spec.draw(model) for model, _ in group]
    share_limits(figures, spec.shares)
    return [_as_svg(spec, figure, name) for figure, (_, name) in zip(figures, group, strict=True)]


def _as_svg(spec: FigureSpec, figure: Figure | None, name: str) -> Svg | None:
    if figure is None:
        return None
    width, height = 72 * figure.get_size_inches()
    return Svg(inline(figure, name, alt=spec.shows), f"0 0 {width:g} {height:g}")


def _as_note(draw: Callable[[], list[Svg | None]]) -> Callable[[], Note]:
    def make_note() -> Note:
        plain = [None if figure is None else {"svg": str(figure.svg), "box": figure.box} for figure in draw()]
        return Note(json.dumps(plain))

    return make_note


def _content(model: Model) -> dict[str, Any]:
    """Everything that a figure can read, without durations."""
    about = {name: value for name, value in model.about.items() if name != "evidence"}
    return {"about": about, "evidence": model.digests}


def _drawing_code() -> dict[str, str]:
    """The hash of the code that draws, and the version of matplotlib."""
    return {
        "code": code_hash(*(module.__name__ for module in MODULES), "rebinding.report.svg"),
        "matplotlib": importlib.metadata.version("matplotlib"),
    }
