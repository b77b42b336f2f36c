"""Colours, lettering and intervals of all figures. The colours are those of Okabe and Ito, distinct in every colour
vision."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from rebinding.verdicts import estimate

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
LEVEL = 0.95


def readable(name: str) -> str:
    """A name as people write it: `swap_period` is 'swap period', `context_box[1]` is 'context box 1'."""
    return name.replace("_", " ").replace("[", " ").replace("]", "")


class Interval(NamedTuple):
    """A mean and the ends of its interval."""

    mean: float
    low: float
    high: float


def over_prompts(table: pd.DataFrame, measure: str) -> Interval:
    """The mean of a measure over prompts; the cases and draws of a prompt are one observation, their mean."""
    return interval_of(table.groupby("prompt")[measure].mean().to_numpy(dtype=float))


def interval_of(values: npt.NDArray[np.generic]) -> Interval:
    """The mean of one number for each prompt."""
    mean = estimate(values, unit="prompts")
    low, high = mean.bounds(LEVEL)
    return Interval(float(mean.mean), float(low), float(high))
