"""Strata: groups of prompts with the same settings of a balanced design.

A counterbalanced design crosses every slot of the asked box with every slot of the answer and each order of naming,
equally often: these are settings of the experiment and not chance. A model may take one route where the asked box is
named first and another where it is named second. A head of one route then has no effect in half of the prompts and a
large one in the others. The spread between the halves does not make its mean less certain; only the spread within does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from rebinding.task.boxes import labels_of
from rebinding.task.prompts import Prompt

Stratum: TypeAlias = tuple[int, ...]
Array: TypeAlias = npt.NDArray[np.float64]


class Spread(NamedTuple):
    """Mean, standard error of the mean, and its degrees of freedom."""

    mean: Array
    error: Array
    freedom: int


def stratum(prompt: Prompt) -> Stratum:
    """The asked box's place among those that the operation names (2: not named), the answer's slot, and its own."""
    labels = labels_of(prompt.operation) if prompt.operation is not None else ()
    place = labels.index(prompt.question) if prompt.question in labels else len(labels)
    return place, prompt.answer_slot, prompt.query_slot


def numbered(strata: Sequence[Stratum]) -> list[int]:
    """Strata as numbers, coarsened until they take at most half of the degrees of freedom: first the asked box's slot
    is dropped, then the answer's, then everything."""
    depths = range(max(map(len, strata), default=0), -1, -1)
    keys = next(cut for cut in ([key[:depth] for key in strata] for depth in depths) if _affordable(cut))
    numbers = {key: number for number, key in enumerate(sorted(set(keys)))}
    return [numbers[key] for key in keys]


def _affordable(keys: Sequence[Stratum]) -> bool:
    return len(set(keys)) <= max(len(keys) // 2, 1)


def spread(values: Array, strata: Sequence[int]) -> Spread:
    """Of values (unit, ...): the variance within strata is pooled; a single unit has no spread, which is error 0."""
    number = np.unique(np.asarray(strata), return_inverse=True)[1]  # (unit,)
    member = number[:, None] == np.arange(number.max() + 1)  # (unit, stratum)
    means = np.tensordot(member.T / member.sum(0)[:, None], values, axes=1)  # (stratum, ...)
    freedom = len(values) - len(means)
    within = ((values - means[number]) ** 2).sum(axis=0)
    return Spread(values.mean(axis=0), (within / max(freedom, 1) / len(values)) ** 0.5, freedom)
