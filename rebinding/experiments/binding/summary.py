"""From evidence of section 5 to the numbers that a rule weighs: one number per example."""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from rebinding.evidence import Evidence
from rebinding.experiments.binding.measures import per_example

Array: TypeAlias = npt.NDArray[np.float64]


@lru_cache(maxsize=8)
def examples(evidence: Evidence) -> pd.DataFrame:
    """All measures of every example; many claims look at one piece of evidence (told apart by identity)."""
    return per_example(evidence)


def controls(evidence: Evidence) -> tuple[str, ...]:
    """The conditions whose vectors are random."""
    return tuple(name for name, how in evidence.settings["conditions"].items() if how["vectors"] != "binding")


@lru_cache(maxsize=64)
def shift(evidence: Evidence, condition: str, measure: str) -> Array:
    """One measure of a condition, by unit; (draw, unit) where there are several draws, or sets of directions.

    A unit is an example. Where every ordered pair of slots was run it is the mean over one example of each, so that
    what one order adds and the other takes away cancels within every unit.
    """
    table = examples(evidence)
    mine = table[table["condition"] == condition].sort_values(["draw", "prompt", "i", "j"])
    draws = mine["draw"].nunique()
    by_pair = [
        rows[measure].to_numpy(dtype=np.float64).reshape(draws, -1)  # (draw, example)
        for _, rows in mine.groupby(["i", "j"])
    ]
    units = min(one.shape[1] for one in by_pair)
    values = np.mean([one[:, :units] for one in by_pair], axis=0)  # (draw, unit)
    found: Array = values[0] if draws == 1 else values
    found.setflags(write=False)  # many claims are given the same
    return found


def size(values: Array) -> Array:
    """A shift counted in the direction in which it goes on the whole, draw by draw: its mean is how large it is."""
    found: Array = values * np.sign(values.mean(axis=-1, keepdims=True))
    return found


def correct(evidence: Evidence, condition: str) -> npt.NDArray[np.bool_]:
    """Whether the unedited model answers, by unit: all examples of it."""
    right = np.atleast_2d(shift(evidence, condition, "correct"))  # (draw, unit): the same in every draw
    found: npt.NDArray[np.bool_] = right[0] == 1
    return found


def difference_of_correct(values: Array, right: npt.NDArray[np.bool_]) -> Array:
    """The mean over correct examples less the mean over all, as one number per example whose mean is that difference
    and whose spread is that of the difference (its linear part in every example); of every draw for itself."""
    chosen, every = (some.mean(axis=-1, keepdims=True) for some in (values[..., right], values))
    found: Array = (chosen - every) + right / right.mean() * (values - chosen) - (values - every)
    return found
