"""How many examples would decide an open question."""

from collections.abc import Callable

import numpy as np
from scipy import stats

from rebinding.verdicts.estimates import FEWEST_UNITS, Array, Estimate
from rebinding.verdicts.outcome import Outcomes

POWER = 0.80
MOST_UNITS = 10_000_000
SIZES = np.unique(np.geomspace(FEWEST_UNITS, MOST_UNITS, 4000).round())
"""The sizes that may be the answer, in equal ratios."""
STRIDE = 64
"""Of how many sizes one is looked at first."""
REACH = float(stats.norm.ppf((1 + POWER) / 2))
"""Within so many of its standard errors a second estimate falls, with that power."""


def needed_units(rule: Callable[[Estimate], Outcomes], estimate: Estimate) -> int | None:
    """The smallest number of units at which `rule` decides with 80 % power, if estimate and spread stay as they are.

    The estimate of a second run of that size falls, with probability 0.8, within 1.28 of its standard errors; where the
    rule gives the same decided outcome at both ends of that range it gives it in between. None if ten million units
    would not do: then something else limits the answer (the paper's N, its rounding, or the number of draws). What is
    settled stays so at larger sizes, so few are looked at before all of those that lie between two of them.
    """
    if not np.isfinite(estimate.unit_var).all():
        return FEWEST_UNITS if estimate.draws is None else None
    sizes = SIZES[estimate.n < SIZES]

    def first_settled(among: Array) -> int | None:
        below, above = (rule(estimate.with_n(among, shift)) for shift in (-REACH, REACH))
        settled = (below == above) & (below != "INCONCLUSIVE")
        return int(settled.argmax()) if settled.any() else None

    last = np.append(np.arange(0, len(sizes) - 1, STRIDE), len(sizes) - 1)  # of every stretch, its last size
    found = first_settled(sizes[last])
    if found is None:
        return None
    begin = last[found - 1] + 1 if found else 0
    between = sizes[begin : last[found] + 1]
    within = first_settled(between)
    assert within is not None  # its last one is settled
    return int(between[within])
