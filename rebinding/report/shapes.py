"""The shapes of a claim's two small pictures: its interval beside the reference value, and the histogram of its sample.

Only coordinates are computed here; the template draws the shapes in the page's own colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rebinding.verdicts.judgement import Judgement

WIDTH, HEIGHT = 200.0, 48.0
PADDING = 0.12
"""The free share of the width on each side."""
BINS = 24


@dataclass(frozen=True)
class Strip:
    """An interval on an axis, in the units of the picture; `band` is the reference value's margin."""

    mean: float
    interval: tuple[float, float]
    band: tuple[float, float] | None
    reference: float | None
    left_label: str
    right_label: str


@dataclass(frozen=True)
class Histogram:
    """The histogram of the numbers behind an estimate, as one path; `mean` is the position of the estimate."""

    path: str
    mean: float
    left_label: str
    right_label: str
    largest_count: int
    units: int


def format_number(value: float | None) -> str:
    """A number with three digits and a real minus sign; nothing for None."""
    return "" if value is None else f"{value:.3g}".replace("-", "−")


def strip(row: Judgement) -> Strip | None:
    """Our interval beside the reference value and its margin; None if nothing was measured."""
    if row.measured is None:
        return None
    low, high = (row.measured if end is None else end for end in (row.low, row.high))
    reference = row.against if row.against is not None else row.paper
    band = None if reference is None or row.margin is None else (reference - row.margin, reference + row.margin)
    values = [low, high, row.measured, *(band or ()), *(() if reference is None else (reference,))]
    first, last = min(values), max(values)
    last = last if last > first else first + 1.0

    def to_x(value: float) -> float:
        return float(round(WIDTH * (PADDING + (1 - 2 * PADDING) * (value - first) / (last - first)), 1))

    return Strip(
        to_x(row.measured),
        (to_x(low), to_x(high)),
        None if band is None else (to_x(band[0]), to_x(band[1])),
        None if reference is None else to_x(reference),
        format_number(first),
        format_number(last),
    )


def histogram(sample: Sequence[float]) -> Histogram | None:
    """The histogram of a sample; None if it is empty or constant."""
    values = np.asarray(sample, dtype=np.float64)
    values = values[np.isfinite(values)]
    if not values.size or np.ptp(values) == 0:
        return None
    counts, edges = np.histogram(values, bins=BINS)
    step, largest_count = WIDTH / BINS, int(counts.max())
    bars = [
        f"M{bin_number * step:.1f} {HEIGHT:g}v{-count / largest_count * (HEIGHT - 4):.1f}h{step - 0.8:.1f}V{HEIGHT:g}z"
        for bin_number, count in enumerate(counts)
        if count
    ]
    mean = WIDTH * (values.mean() - edges[0]) / (edges[-1] - edges[0])
    return Histogram(
        "".join(bars),
        round(float(mean), 1),
        format_number(edges[0]),
        format_number(edges[-1]),
        largest_count,
        values.size,
    )
