"""How far two computations of the same numbers may lie apart: where tests get their tolerances from.

Kernels differ in the order of their sums, and what one layer rounds the next ones amplify. So the tolerance is a share
of the largest number that was computed on the way, mostly the largest logit, and never of the difference in question.

"It moved" is stated against the same tolerance: `is_changed`.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

ROUNDING = 400 * torch.finfo(torch.float32).eps
"""Of the largest entry. Seen under `--rounding 1`: 50 units in the last place in tracing, 115 in edits of section 5.
Plants, whose scores are a hundred and more, reached 470 where a query is shifted: there the scores are the size."""

MIN_CHANGE_SHARE = 2
"""A change counts from this many times the rounding tolerance on: seven times the rounding seen."""


def allowance(*values: Tensor | ArrayLike, floor: float = 0.0) -> float:
    """How far numbers may lie apart that are computed from `values`; masked scores and infinities are no size."""
    return ROUNDING * max(floor, *(_largest(value) for value in values))


def agree(actual: Tensor, expected: Tensor) -> bool:
    """Equal up to the rounding of sums taken in another order."""
    return bool((actual - expected).abs().max() <= allowance(expected))


def is_changed(actual: Tensor, clean: Tensor) -> bool:
    """Whether an edit had an effect: the largest change is clearly more than rounding."""
    return bool((actual - clean).abs().max() > MIN_CHANGE_SHARE * allowance(clean))


def _largest(value: Tensor | ArrayLike) -> float:
    numbers = np.abs(np.asarray(value, dtype=np.float64))
    return float(numbers[numbers < 1e30].max(initial=0.0))
