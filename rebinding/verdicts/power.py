"""How many examples would decide an open claim."""

from collections.abc import Callable

import numpy as np
from scipy import stats

from rebinding.verdicts.estimates import FEWEST_UNITS, Array, Estimate
from rebinding.verdicts.outcome import Outcomes

POWER = 0.80
MOST_UNITS = 10_000_000
SIZES = np.unique(np.geomspace(FEWEST_UNITS, MOST_UNITS, 4000).round())
"""The candidate sizes, in equal ratios."""
STRIDE = 64
"""The search first tries every 64th size."""
REACH = float(stats.norm.ppf((1 + POWER) / 2))
"""A second estimate falls within this many of its standard errors with probability `POWER`."""


def needed_units(rule: Callable[[Estimate], Outcomes], estimate: Estimate) -> int | None:
    """The smallest number of units at which `rule` decides with 80 % power, if estimate and spread stay as they are.

    The estimate of a second run of that size falls, with probability 0.8, within 1.28 of its standard errors; where the
    rule gives the same decided outcome at both ends of that range it gives it in between. None if ten million units
    would not do: then something else limits the answer (the paper's N, its rounding, or the number of draws). A size
    that decides is followed by sizes that decide, so the search tries a few sizes, then all between two of them.
    """
    if not np.isfinite(estimate.unit_var).all():
        return FEWEST_UNITS if estimate.draws is None else None
    sizes = SIZES[estimate.n < SIZES]

    def first_deciding(candidates: Array) -> int | None:
        below, above = (rule(estimate.with_n(candidates, shift)) for shift in (-REACH, REACH))
        decides = (below == above) & (below != "INCONCLUSIVE")
        return int(decides.argmax()) if decides.any() else None

    ends = np.append(np.arange(0, len(sizes) - 1, STRIDE), len(sizes) - 1)  # the last size of every stretch
    stretch = first_deciding(sizes[ends])
    if stretch is None:
        return None
    begin = ends[stretch - 1] + 1 if stretch else 0
    candidates = sizes[begin : ends[stretch] + 1]
    index = first_deciding(candidates)
    assert index is not None  # the last size of the stretch decides
    return int(candidates[index])
