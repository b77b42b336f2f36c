"""The figures of all sections, as SVG, drawn once: kept in the store under all that they are drawn from.

That is a model's evidence, byte for byte, what is written down about it, and the source that draws. Without a store
every figure is drawn.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from markupsafe import Markup
from matplotlib.figure import Figure

import rebinding.experiments
from rebinding.evidence.request import digest
from rebinding.evidence.sources import code_hash
from rebinding.evidence.store import Note, Store
from rebinding.experiments.figure import FigureSpec
from rebinding.report.folder import Model
from rebinding.report.svg import alike, inline

KEPT = "figures"
Group: TypeAlias = Sequence[tuple[Model, str]]
"""Models with the ids of their figures."""


def _modules() -> tuple[str, ...]:
    """The modules of the sections that have figures."""
    sections = [one.name for one in pkgutil.iter_modules(rebinding.experiments.__path__) if one.ispkg]
    names = [f"rebinding.experiments.{section}.figures" for section in sections]
    return tuple(name for name in names if importlib.util.find_spec(name))


FIGURES: tuple[FigureSpec, ...] = tuple(spec for name in _modules() for spec in importlib.import_module(name).FIGURES)


@dataclass(frozen=True)
class Svg:
    """A figure's SVG and its view box."""

    svg: Markup
    box: str


def drawn(spec: FigureSpec, models: Sequence[Model], names: Sequence[str], store: Store | None) -> list[Svg | None]:
    """The figure of every model under its id; None where it has no evidence for it. Those that share a scale belong
    together: what one of them shows moves the others."""
    each = list(zip(models, names, strict=True))
    groups = [each] if spec.shares else [[one] for one in each]
    return [found for group in groups for found in _of_group(spec, group, store)]


def _of_group(spec: FigureSpec, group: Group, store: Store | None) -> list[Svg | None]:
    if store is None:
        return _draw(spec, group)
    models = [{"model": _content(model), "name": name} for model, name in group]
    key = digest({"models": models, "spec": spec.key, "shows": spec.shows, **_drawn_by()})
    found = json.loads(store.remember(Note, KEPT, key, _as_note(lambda: _draw(spec, group))).text)
    # our own figures, drawn before
    return [None if one is None else Svg(Markup(one["svg"]), one["box"]) for one in found]


def _draw(spec: FigureSpec, group: Group) -> list[Svg | None]:
    figures = [spec.draw(model) for model, _ in group]
    alike(figures, spec.shares)
    return [_as_svg(spec, one, name) for one, (_, name) in zip(figures, group, strict=True)]


def _as_svg(spec: FigureSpec, figure: Figure | None, name: str) -> Svg | None:
    if figure is None:
        return None
    width, height = 72 * figure.get_size_inches()
    return Svg(inline(figure, name, alt=spec.shows), f"0 0 {width:g} {height:g}")


def _as_note(draw: Callable[[], list[Svg | None]]) -> Callable[[], Note]:
    def made() -> Note:
        told = [None if one is None else {"svg": str(one.svg), "box": one.box} for one in draw()]
        return Note(json.dumps(told))

    return made


def _content(model: Model) -> dict[str, Any]:
    """All that a figure can look at, but for how long things took."""
    about = {name: value for name, value in model.about.items() if name != "evidence"}
    return {"about": about, "evidence": model.digests}


def _drawn_by() -> dict[str, str]:
    """The source that draws, and the library."""
    return {
        "code": code_hash(*_modules(), "rebinding.report.svg"),
        "matplotlib": importlib.metadata.version("matplotlib"),
    }
