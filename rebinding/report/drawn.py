"""The two small pictures of a claim: its interval beside what it is held against, and the numbers behind it.

Both are plain shapes in the page's own colours, so only their places are worked out here; the template draws them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rebinding.verdicts.judgement import Judgement

WIDTH, HEIGHT = 200.0, 48.0
ROOM = 0.12
"""Share of the width that stays free on each side."""
BINS = 24


@dataclass(frozen=True)
class Strip:
    """An interval on an axis, in the units of the picture; `band` is what counts as the same, or as nothing."""

    mean: float
    line: tuple[float, float]
    band: tuple[float, float] | None
    against: float | None
    left: str
    right: str


@dataclass(frozen=True)
class Histogram:
    """Bars of the numbers behind an estimate, as one path; `mean` is where the estimate stands."""

    path: str
    mean: float
    left: str
    right: str
    tallest: int
    units: int


def number(value: float | None) -> str:
    """Three digits with a real minus sign, or nothing."""
    return "" if value is None else f"{value:.3g}".replace("-", "−")


def strip(one: Judgement) -> Strip | None:
    """Our interval beside the paper's value and margin; None where nothing was measured."""
    if one.measured is None:
        return None
    low, high = (one.measured if end is None else end for end in (one.low, one.high))
    against = one.against if one.against is not None else one.paper
    band = None if against is None or one.margin is None else (against - one.margin, against + one.margin)
    shown = [low, high, one.measured, *(band or ()), *(() if against is None else (against,))]
    first, last = min(shown), max(shown)
    last = last if last > first else first + 1.0

    def at(value: float) -> float:
        return float(round(WIDTH * (ROOM + (1 - 2 * ROOM) * (value - first) / (last - first)), 1))

    return Strip(
        at(one.measured),
        (at(low), at(high)),
        None if band is None else (at(band[0]), at(band[1])),
        None if against is None else at(against),
        number(first),
        number(last),
    )


def histogram(sample: Sequence[float]) -> Histogram | None:
    """The numbers of a sample; None where there are none, or where all are the same."""
    values = np.asarray(sample, dtype=np.float64)
    values = values[np.isfinite(values)]
    if not values.size or np.ptp(values) == 0:
        return None
    counts, edges = np.histogram(values, bins=BINS)
    step, tallest = WIDTH / BINS, int(counts.max())
    bars = [
        f"M{place * step:.1f} {HEIGHT:g}v{-count / tallest * (HEIGHT - 4):.1f}h{step - 0.8:.1f}V{HEIGHT:g}z"
        for place, count in enumerate(counts)
        if count
    ]
    mean = WIDTH * (values.mean() - edges[0]) / (edges[-1] - edges[0])
    return Histogram("".join(bars), round(float(mean), 1), number(edges[0]), number(edges[-1]), tallest, values.size)
