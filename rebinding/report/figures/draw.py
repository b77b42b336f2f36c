"""Draw the figures of all sections as SVG: small, the same bytes every time, and readable in dark mode.

Text stays text, in the page's own font. Black becomes the colour of the page's text, and the background is left out.
Each picture salts its ids, so that they do not clash with those of other pictures on the page.

Each figure is drawn once: the store keeps it under the key of its content.

The key has the model's evidence, byte for byte, its description, and the source code that draws. Without a store every
figure is drawn anew.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rebinding.evidence.request import digest
from rebinding.evidence.sources import code_hash
from rebinding.evidence.store import Note, Store
from rebinding.report.figures import binding, circuits, diagnostic, roles, tracing
from rebinding.report.figures.figure import TOOLTIP, FigureSpec
from rebinding.report.folder import ReportedModel

METADATA_TAGS = re.compile(
    r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>|<style[^>]*>.*?</style>", flags=re.DOTALL
)
TAG = re.compile(r"<[^>]*>")
UNUSED_ID = re.compile(r' id="(?:[A-Za-z][A-Za-z0-9.]*_\d+|image[0-9a-f]+)"')
"""Ids without references: figure_1, axes_1, and those of images."""
TOOLTIP_ID = re.compile(rf'<g id="{TOOLTIP}([^"]*)">')
SVG_TAG = re.compile(r"<svg[^>]*>")
BOX = re.compile(r'viewBox="([^"]*)"')
LETTERING: dict[Any, Any] = {"svg.fonttype": "none", "font.family": "sans-serif", "text.parse_math": False}


def inline(figure: Figure, name: str, *, alt: str) -> Markup:
    """The figure as an `<svg>` element with the id `name` and the title `alt`."""
    stream = io.StringIO()
    with mpl.rc_context({**LETTERING, "svg.hashsalt": name}):
        lay_out(figure)
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = TAG.sub(lambda match: _tidy(match.group()), METADATA_TAGS.sub("", stream.getvalue()))
    text = TOOLTIP_ID.sub(r"<g><title>\1</title>", re.sub(r">\s+<", "><", text).strip())
    match = BOX.search(text)
    box, width = match.group(1) if match else "0 0 100 100", round(72 * figure.get_size_inches()[0])
    head = Markup(
        '<svg id="{0}" class="plot" style="min-width: {1}px" viewBox="{2}" role="img" aria-labelledby="{0}-title">'
        '<title id="{0}-title">{3}</title>'
    )
    opening = head.format(name, width, box, alt)
    return Markup(SVG_TAG.sub(lambda _: str(opening), text, count=1))


def lay_out(figure: Figure) -> None:
    """Run the figure's layout engine once. With an engine, savefig draws the whole figure for it, and then again."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine(None)  # "none" would leave one that draws the figure and does nothing


def _tidy(tag: str) -> str:
    """One tag with short numbers, without unused ids; black becomes the colour of the surrounding text."""
    if "base64" in tag:
        return UNUSED_ID.sub("", tag.replace("\n", ""))
    tag = UNUSED_ID.sub("", re.sub(r"\s+", " ", tag))
    tag = re.sub(r"-?\d+\.\d{2,}", lambda match: f"{float(match.group()):.1f}".removesuffix(".0"), tag)
    return re.sub(r"#000000\b|\bblack\b", "currentColor", tag)


def share_limits(figures: Sequence[Figure | None], axis: Literal["", "x", "y"]) -> None:
    """Give panels of the same quantity the widest limits of all: along y every panel of every figure, along x those at
    the same place in their figures."""
    panels = [figure.axes for figure in figures if figure is not None]
    groups: Iterable[Sequence[Axes]] = ()
    if axis == "x":
        groups = zip(*panels, strict=False)
    elif axis == "y":
        groups = ([axes for figure_axes in panels for axes in figure_axes],)
    for group in groups:
        if not group:
            continue
        ends = [end for axes in group for end in (axes.get_xlim() if axis == "x" else axes.get_ylim())]
        for axes in group:
            (axes.set_xlim if axis == "x" else axes.set_ylim)(min(ends), max(ends))


STORE_NAME = "figures"
Group: TypeAlias = Sequence[tuple[ReportedModel, str]]
"""Models with the ids of their figures."""


MODULES = (binding, circuits, diagnostic, roles, tracing)
FIGURES: tuple[FigureSpec, ...] = (
    *binding.FIGURES,
    *circuits.CIRCUIT_FIGURES,
    *circuits.PATH_FIGURES,
    *roles.FIGURES,
    *circuits.SEARCH_FIGURES,
    *tracing.FIGURES,
    *diagnostic.FIGURES,
)


@dataclass(frozen=True)
class Svg:
    """A figure's SVG and its view box."""

    svg: Markup
    box: str


def draw_all(
    spec: FigureSpec, models: Sequence[ReportedModel], names: Sequence[str], store: Store | None
) -> list[Svg | None]:
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


def _content(model: ReportedModel) -> dict[str, Any]:
    """Everything that a figure can read, without durations."""
    about = {name: value for name, value in model.about.items() if name != "evidence"}
    return {"about": about, "evidence": model.digests}


def _drawing_code() -> dict[str, str]:
    """The hash of the code that draws, and the version of matplotlib."""
    return {
        "code": code_hash(*(module.__name__ for module in MODULES), "rebinding.report.figures.draw"),
        "matplotlib": importlib.metadata.version("matplotlib"),
    }
