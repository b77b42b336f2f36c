"""Turn a matplotlib figure into SVG for a page: small, the same bytes every time, and readable in dark mode.

Text stays text, in the page's own font. Black becomes the colour of the page's text, and the background is left out.
Each picture salts its ids, so that they do not clash with those of other pictures on the page.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

METADATA_TAGS = re.compile(
    r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>|<style[^>]*>.*?</style>", flags=re.DOTALL
)
TAG = re.compile(r"<[^>]*>")
UNUSED_ID = re.compile(r' id="(?:[A-Za-z][A-Za-z0-9.]*_\d+|image[0-9a-f]+)"')
"""Ids without references: figure_1, axes_1, and those of images."""
SVG_TAG = re.compile(r"<svg[^>]*>")
BOX = re.compile(r'viewBox="([^"]*)"')
LETTERING: dict[Any, Any] = {"svg.fonttype": "none", "font.family": "sans-serif", "text.parse_math": False}


def inline(figure: Figure, name: str, *, alt: str) -> Markup:
    """The figure as an `<svg>` element with the id `name` and the title `alt`."""
    stream = io.StringIO()
    with mpl.rc_context({**LETTERING, "svg.hashsalt": name}):
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = TAG.sub(lambda match: _tidy(match.group()), METADATA_TAGS.sub("", stream.getvalue()))
    text = re.sub(r">\s+<", "><", text).strip()
    match = BOX.search(text)
    box, width = match.group(1) if match else "0 0 100 100", round(72 * figure.get_size_inches()[0])
    head = Markup(
        '<svg id="{0}" class="plot" style="min-width: {1}px" viewBox="{2}" role="img" aria-labelledby="{0}-title">'
        '<title id="{0}-title">{3}</title>'
    )
    opening = head.format(name, width, box, alt)
    return Markup(SVG_TAG.sub(lambda _: str(opening), text, count=1))


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
