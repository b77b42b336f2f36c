"""The ratio of two means over the same prompts, with an interval.

The interval holds every r for which the mean of `part - r * whole` is not surely different from 0 (Fieller's method).
It takes the bounds of `estimate`, so that equal hits on N prompts leave room for those that were not met. Where the
mean of `whole` may be 0 no ratio is too large, and there is no upper end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rebinding.paper.claim import LEVEL
from rebinding.verdicts.estimates import Estimate, estimate

LARGEST = 1e3
"""A ratio above this is as good as none."""
STEPS = 60
"""Halvings of [0, LARGEST]: the ends are known to 1e-15."""


@dataclass(frozen=True)
class Ratio:
    """A ratio and the ends of its interval."""

    value: float | None
    low: float
    high: float | None


def ratio(part: npt.ArrayLike, whole: npt.ArrayLike, *, level: float = LEVEL) -> Ratio:
    """mean(part) / mean(whole) of shares between 0 and 1, by prompt; each end errs in `level` of cases."""
    ours, theirs = (np.asarray(one, dtype=np.float64) for one in (part, whole))  # (prompt,)
    if ours.shape != theirs.shape or ours.ndim != 1:
        raise ValueError(f"samples of shapes {ours.shape} and {theirs.shape}; give one number per prompt for both")

    def less(factor: float) -> Estimate:
        return estimate(ours - factor * theirs, unit="prompts", support=(-factor, 1.0))

    low = _last(lambda factor: bool(less(factor).safe_bounds(1 - 2 * level)[0] > 0))
    high = _last(lambda factor: bool(less(factor).safe_bounds(1 - 2 * level)[1] >= 0))
    value = float(ours.mean() / theirs.mean()) if theirs.any() else None
    return Ratio(value, low, None if high >= LARGEST else high)


def _last(holds: Callable[[float], bool]) -> float:
    """The largest factor for which something holds that stops holding once; 0 if it never does."""
    if holds(LARGEST):
        return LARGEST
    low, high = 0.0, LARGEST
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
