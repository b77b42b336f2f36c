"""The ratio of two means over the same prompts, with an interval.

The interval contains every r for which the mean of `part - r * whole` is not surely different from 0 (Fieller's
method). It uses the bounds of `estimate`, so equal hits on N prompts still allow for unseen cases. Where the mean of
`whole` may be 0 no ratio is too large, and there is no upper end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rebinding.paper.claim import LEVEL
from rebinding.verdicts.estimates import Estimate, estimate

LARGEST = 1e3
"""A ratio above this counts as infinite."""
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
    numerator, denominator = (np.asarray(sample, dtype=np.float64) for sample in (part, whole))  # (prompt,)
    if numerator.shape != denominator.shape or numerator.ndim != 1:
        shapes = f"{numerator.shape} and {denominator.shape}"
        raise ValueError(f"samples of shapes {shapes}; give one number per prompt for both")

    def difference(factor: float) -> Estimate:
        return estimate(numerator - factor * denominator, unit="prompts", support=(-factor, 1.0))

    low = _largest(lambda factor: bool(difference(factor).safe_bounds(1 - 2 * level)[0] > 0))
    high = _largest(lambda factor: bool(difference(factor).safe_bounds(1 - 2 * level)[1] >= 0))
    value = float(numerator.mean() / denominator.mean()) if denominator.any() else None
    return Ratio(value, low, None if high >= LARGEST else high)


def _largest(holds: Callable[[float], bool]) -> float:
    """The largest factor for which a condition holds that changes only once, from true to false; 0 if it never does."""
    if holds(LARGEST):
        return LARGEST
    low, high = 0.0, LARGEST
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
