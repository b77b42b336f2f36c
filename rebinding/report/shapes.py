"""The shapes of small pictures: the estimates of a claim on one axis, and the histogram of a sample.

Only coordinates are computed here; the template draws the shapes in the page's own colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.ticker import MaxNLocator

from rebinding.verdicts.judgement import Judgement
from rebinding.verdicts.quantities import format_number

WIDTH, HEIGHT = 200.0, 48.0
PADDING = 0.06
"""The free share of the width on each side."""
BINS = 24
FEW = 100
"""Up to this many numbers have a stroke of their own below the histogram."""
TICKS = 4
"""The largest number of steps between the numbers of an axis."""


@dataclass(frozen=True)
class Tick:
    """A number on an axis, and its place."""

    x: float
    label: str


@dataclass(frozen=True)
class Strip:
    """An interval on an axis, in the units of the picture; `band` is the reference value's margin."""

    mean: float
    interval: tuple[float, float]
    band: tuple[float, float] | None
    reference: float | None


@dataclass(frozen=True)
class Axis:
    """The axis that all estimates of a claim share, on every model and under both procedures."""

    first: float
    last: float
    ticks: tuple[Tick, ...]

    def place(self, value: float) -> float:
        """The place of a value."""
        share = (value - self.first) / (self.last - self.first)
        return float(round(WIDTH * (PADDING + (1 - 2 * PADDING) * share), 1))


@dataclass(frozen=True)
class Histogram:
    """The histogram of the numbers behind an estimate, as one path; `mean` is the position of the estimate. `ticks` has
    a stroke for each number, where they are few."""

    path: str
    ticks: str
    mean: float
    left_label: str
    right_label: str
    largest_count: int
    units: int


@dataclass(frozen=True)
class Estimated:
    """What a picture shows of a row: its estimate with the interval, what this is compared with, and the margin.

    A value row shows the difference to the other number, since the numbers differ from model to model.
    """

    mean: float
    low: float
    high: float
    reference: float | None
    margin: float | None

    @classmethod
    def of(cls, row: Judgement) -> Estimated | None:
        """The numbers of a row; None if nothing was measured."""
        if row.difference is not None:
            return cls(*row.difference, 0.0, row.margin)
        if row.measured is None:
            return None
        low, high = (row.measured if end is None else end for end in (row.low, row.high))
        return cls(row.measured, low, high, row.against if row.against is not None else row.paper, row.margin)

    @property
    def band(self) -> tuple[float, float] | None:
        """The margin around the reference value; None without one."""
        if self.reference is None or not self.margin:
            return None
        return self.reference - self.margin, self.reference + self.margin

    @property
    def ends(self) -> tuple[float, ...]:
        """The numbers that an axis must hold; zero is among them."""
        reference = 0.0 if self.reference is None else self.reference
        return (self.low, self.high, self.mean, reference, 0.0, *(self.band or ()))


def axis_of(rows: Sequence[Judgement]) -> Axis | None:
    """An axis for these rows, with zero and round numbers; None if nothing was measured."""
    ends = [end for row in rows if (estimated := Estimated.of(row)) for end in estimated.ends]
    if not ends:
        return None
    first, last = min(ends), max(ends)
    last = last if last > first else first + 1.0
    axis = Axis(first, last, ())
    numbers = [float(value) for value in MaxNLocator(TICKS).tick_values(first, last) if first <= value <= last]
    return Axis(first, last, tuple(Tick(axis.place(value), format_number(value + 0.0)) for value in numbers))


def strip(row: Judgement, axis: Axis | None) -> Strip | None:
    """The estimate of a row on an axis; None if nothing was measured."""
    estimated = Estimated.of(row)
    if estimated is None or axis is None:
        return None
    band, reference = estimated.band, estimated.reference
    return Strip(
        axis.place(estimated.mean),
        (axis.place(estimated.low), axis.place(estimated.high)),
        None if band is None else (axis.place(band[0]), axis.place(band[1])),
        None if reference is None else axis.place(reference),
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
    places = WIDTH * (values - edges[0]) / (edges[-1] - edges[0])
    mean = places.mean()
    ticks = [f"M{place:.1f} {HEIGHT + 1:g}v4" for place in sorted(places)] if values.size <= FEW else []
    return Histogram(
        "".join(bars),
        "".join(ticks),
        round(float(mean), 1),
        format_number(edges[0]),
        format_number(edges[-1]),
        largest_count,
        values.size,
    )
