"""From evidence of section 5 to the numbers that a rule weighs: one number per example."""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from rebinding.evidence import Evidence
from rebinding.experiments.binding.conditions import PUBLISHED_RANDOM
from rebinding.experiments.binding.measures import per_example

Array: TypeAlias = npt.NDArray[np.float64]
RANDOM_CONTROLS = tuple(one.name for one in PUBLISHED_RANDOM)
"""The three conditions that the printed random row may be."""


@lru_cache(maxsize=8)
def examples(evidence: Evidence) -> pd.DataFrame:
    """All measures of every example; many claims look at one piece of evidence (told apart by identity)."""
    return per_example(evidence)


def shift(evidence: Evidence, condition: str, measure: str) -> Array:
    """One measure of a condition, by example; (draw, example) where the condition has several draws."""
    table = examples(evidence)
    mine = table[table["condition"] == condition].sort_values(["draw", "prompt", "i", "j"])
    draws = mine["draw"].nunique()
    values = mine[measure].to_numpy(dtype=np.float64).reshape(draws, -1)
    found: Array = values[0] if draws == 1 else values
    return found


def balanced(evidence: Evidence, condition: str, measure: str) -> Array:
    """One number per balanced set: the mean over one example of every ordered pair of slots, so that what one order
    adds and the other takes away cancels within each unit."""
    table = examples(evidence)
    mine = table[table["condition"] == condition].sort_values("prompt")
    by_pair = [rows[measure].to_numpy(dtype=np.float64) for _, rows in mine.groupby(["i", "j"])]
    sets = min(map(len, by_pair))
    together: Array = np.mean([values[:sets] for values in by_pair], axis=0)
    return together


def correct(evidence: Evidence, condition: str) -> npt.NDArray[np.bool_]:
    """Whether the unedited model answers, by example."""
    table = examples(evidence)
    mine = table[table["condition"] == condition].sort_values(["draw", "prompt", "i", "j"])
    right: npt.NDArray[np.bool_] = mine["correct"].to_numpy(dtype=np.bool_)
    return right


def difference_of_correct(values: Array, right: npt.NDArray[np.bool_]) -> Array:
    """The mean over correct examples less the mean over all, as one number per example whose mean is that difference
    and whose spread is that of the difference (its linear part in every example)."""
    chosen, every = values[right].mean(), values.mean()
    found: Array = (chosen - every) + right / right.mean() * (values - chosen) - (values - every)
    return found
