"""Means with 95 % intervals over prompts, for figures."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from rebinding.verdicts import estimate

LEVEL = 0.95


class Interval(NamedTuple):
    """A mean and the ends of its interval."""

    mean: float
    low: float
    high: float


def over_prompts(table: pd.DataFrame, measure: str) -> Interval:
    """The mean of a measure; a prompt's several cases and draws count as one observation, their mean."""
    per_prompt = table.groupby("prompt")[measure].mean().to_numpy(dtype=float)
    found = estimate(per_prompt, unit="prompts")
    low, high = found.bounds(LEVEL)
    return Interval(float(found.mean), float(low), float(high))
