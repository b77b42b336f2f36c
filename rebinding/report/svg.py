"""From a matplotlib figure to SVG that can stand in a page: small, the same bytes every time, and readable in the dark.

Text stays text, in the page's own lettering. Black becomes the colour of the page's text, and the ground is left out.
Names inside one picture may not clash with those of another on the same page, so each picture salts its own.
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

DROPPED = re.compile(
    r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>|<style[^>]*>.*?</style>", flags=re.DOTALL
)
TAG = re.compile(r"<[^>]*>")
UNUSED = re.compile(r' id="(?:[A-Za-z][A-Za-z0-9.]*_\d+|image[0-9a-f]+)"')
"""Names that nobody refers to: figure_1, axes_1, and those of images."""
OPENING = re.compile(r"<svg[^>]*>")
BOX = re.compile(r'viewBox="([^"]*)"')
LETTERING: dict[Any, Any] = {"svg.fonttype": "none", "font.family": "sans-serif", "text.parse_math": False}


def inline(figure: Figure, name: str, *, alt: str) -> Markup:
    """The figure as an `<svg>` element with the id `name`, and a title that says what is to be seen."""
    stream = io.StringIO()
    with mpl.rc_context({**LETTERING, "svg.hashsalt": name}):
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = TAG.sub(lambda found: _tidy(found.group()), DROPPED.sub("", stream.getvalue()))
    text = re.sub(r">\s+<", "><", text).strip()
    found = BOX.search(text)
    box, width = found.group(1) if found else "0 0 100 100", round(72 * figure.get_size_inches()[0])
    head = Markup(
        '<svg id="{0}" class="plot" style="min-width: {1}px" viewBox="{2}" role="img" aria-labelledby="{0}-title">'
        '<title id="{0}-title">{3}</title>'
    )
    opening = head.format(name, width, box, alt)
    return Markup(OPENING.sub(lambda _: str(opening), text, count=1))


def _tidy(tag: str) -> str:
    """One tag with short numbers, without names that nobody uses; black is the colour of the text around."""
    if "base64" in tag:
        return UNUSED.sub("", tag.replace("\n", ""))
    tag = UNUSED.sub("", re.sub(r"\s+", " ", tag))
    tag = re.sub(r"-?\d+\.\d{2,}", lambda found: f"{float(found.group()):.1f}".removesuffix(".0"), tag)
    return re.sub(r"#000000\b|\bblack\b", "currentColor", tag)


def alike(figures: Sequence[Figure | None], axis: Literal["", "x", "y"]) -> None:
    """Give panels that show the same quantity the widest limits of all: along y every panel of every figure, along x
    those that stand at the same place in their figures."""
    panels = [one.axes for one in figures if one is not None]
    groups: Iterable[Sequence[Axes]] = ()
    if axis == "x":
        groups = zip(*panels, strict=False)
    elif axis == "y":
        groups = ([axes for one in panels for axes in one],)
    for group in groups:
        if not group:
            continue
        ends = [end for axes in group for end in (axes.get_xlim() if axis == "x" else axes.get_ylim())]
        for axes in group:
            (axes.set_xlim if axis == "x" else axes.set_ylim)(min(ends), max(ends))
