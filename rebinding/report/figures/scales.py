"""One scale for the figures of several models, so that a bar twice as long is twice as much on any of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure


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
