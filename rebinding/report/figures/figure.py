"""A figure of the report: the evidence it needs, what the paper's figure shows, and what ours shows.

Colours, lettering and intervals of all figures are here too. The colours are those of Okabe and Ito, distinct in every
colour vision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.colors import to_rgb

from rebinding.evidence import Evidence, Kind
from rebinding.evidence.request import Facet
from rebinding.report.folder import ReportedModel, has_facets
from rebinding.verdicts import quantities

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Shows:
    """Evidence of a kind, where its requests have these facets."""

    kind: Kind
    facets: Mapping[str, Facet] = field(default_factory=dict)


def shows(kind: Kind, **facets: Facet) -> Shows:
    """A kind of evidence, or the part of it that has these facets."""
    return Shows(kind, MappingProxyType(facets))


@dataclass(frozen=True)
class FigureSpec:
    """A figure that is drawn for every model. `uses` is the evidence that it shows; `draw` returns None for a model
    without that evidence."""

    key: str
    section: str
    title: str
    stands_for: str
    says: str
    shows: str
    uses: tuple[Shows, ...]
    draw: Callable[[ReportedModel], Figure | None]
    shares: Literal["", "x", "y"] = ""
    """The axis that has one scale for all models of a page."""
    special: bool = False
    """Most models do not have this figure, and nothing is missing then."""

    def shows_any(self, evidence: Iterable[Evidence]) -> bool:
        """Whether this figure shows any of the evidence of a claim."""
        return any(has_facets(item, use.kind, **use.facets) for item in evidence for use in self.uses)


def heads_by_group(heads: Iterable[tuple[str, int, int, str]]) -> dict[str, list[tuple[int, int]]]:
    """The heads (layer, head) of each group of a circuit."""
    groups: dict[str, list[tuple[int, int]]] = {}
    for group, layer, head, _ in heads:
        groups.setdefault(group, []).append((layer, head))
    return groups


def cut_label(cut: Facet) -> str:
    """For a title: how many tokens before the ':' prompts were read."""
    return f", {cut} tokens before ':'" if cut else ""


OKABE_ITO: Mapping[str, str] = MappingProxyType(
    {
        "black": "#000000",
        "orange": "#E69F00",
        "sky": "#56B4E9",
        "green": "#009E73",
        "yellow": "#F0E442",
        "blue": "#0072B2",
        "vermillion": "#D55E00",
        "purple": "#CC79A7",
    }
)
PANEL_COLOURS: Mapping[str, str] = MappingProxyType(
    {
        "reference_box": OKABE_ITO["blue"],
        "swap_target_box": OKABE_ITO["orange"],
        "object": OKABE_ITO["green"],
    }
)
"""The three roles of the tracing figure."""
SITE_COLOURS: Mapping[str, str] = MappingProxyType(
    {"swap_period": OKABE_ITO["blue"], "readout": OKABE_ITO["vermillion"]}
)
"""The two places of the readout diagnostic."""
MAP_COLOURS = "cividis"
"""For one quantity from 0 to 1: even in lightness, and blue to yellow in every colour vision."""
DPI = 150
SMALLEST = 9
"""Points of the smallest lettering: the page shows a figure at 72 dots an inch or more, so as many dots."""
LETTERING: dict[Any, Any] = {
    "font.size": SMALLEST,
    "legend.fontsize": SMALLEST,
    "xtick.labelsize": SMALLEST,
    "ytick.labelsize": SMALLEST,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}


DARK = "#1a1a1a"
"""Nearly black, for text on a colour: black itself becomes the colour of the page's text."""


def text_colour(fill: str) -> str:
    """White or dark, whichever has more contrast on a colour (relative luminance of WCAG)."""
    linear = np.array(to_rgb(fill)) ** 2.2
    luminance = float(linear @ (0.2126, 0.7152, 0.0722))
    return "#ffffff" if luminance < 0.16 else DARK


def tooltip(text: str) -> str:
    """The id of an artist that has this text as its title on the page (`draw.inline`)."""
    return f"{TOOLTIP}{text}"


TOOLTIP = "tooltip: "


def readable(name: str) -> str:
    """A name as people write it: `swap_period` is 'swap period', `context_box[1]` is 'context box 1'."""
    return name.replace("_", " ").replace("[", " ").replace("]", "")


class Interval(NamedTuple):
    """A mean and the ends of its interval."""

    mean: float
    low: float
    high: float


def over_prompts(table: pd.DataFrame, measure: str) -> Interval:
    """The mean of a measure over prompts; the cases of a prompt are one observation, their mean."""
    return interval_of(table.groupby("prompt")[measure].mean().to_numpy(dtype=float))


def interval_of(values: npt.NDArray[np.generic], *, share: bool = False) -> Interval:
    """The mean of numbers by (prompt,) or (draw, prompt), with the interval of the rows (`quantities.py`)."""
    measurement, low, high = quantities.interval_of(values, share=share)
    return Interval(float(measurement.mean), low, high)


def draw_interval(
    axes: Axes, interval: Interval, line: float, colour: str, label: str | None = None, marker: str = "o"
) -> None:
    """Draw a mean with its interval on a line of horizontal axes."""
    ends = [[interval.mean - interval.low], [interval.high - interval.mean]]
    axes.errorbar(interval.mean, line, xerr=ends, fmt=marker, color=colour, capsize=2, label=label)
