"""The stopping rule of a row: its share of the right outcome is surely on one side of its target.

Shares are checked after fixed numbers of samples (looks). The interval of a look is the exact one of Clopper and
Pearson at confidence 1 - 5 % / (number of looks). So with probability 95 % or more the true share lies within the
intervals of all looks, whichever look ended the row.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from statsmodels.stats.proportion import proportion_confint

ERROR = 0.05
"""The probability that any look's interval misses the true share."""
FIRST_LOOK = 25
"""The samples before the first look: 25 of 25 are surely more than 80 %, and 20 of 20 are not."""
MOST_OF_LONG = 50
"""The most samples of rows that discover a circuit."""
HEADLINE_TARGET, TARGET = 0.9, 0.8
"""The required share of right outcomes of a row."""
RIGHT: Mapping[str, str] = MappingProxyType({"paper": "REPLICATED", "rival": "NOT REPLICATED"})
"""The right outcome in each world, for a row that the paper asserts. In a world of one's own none is right."""


def looks(runs: int) -> tuple[int, ...]:
    """The numbers of samples at which a share is checked: twice as many each time, and all of them."""
    numbers = []
    number = FIRST_LOOK
    while number < runs:
        numbers.append(number)
        number *= 2
    return *numbers, runs


def interval(count: int, runs: int, n_looks: int = 1) -> tuple[float, float]:
    """The interval of a share, `count` of `runs`, if it is one of so many looks."""
    if not runs:
        return 0.0, 1.0
    low, high = proportion_confint(count, runs, alpha=ERROR / n_looks, method="beta")
    return float(low), float(high)


def is_settled(count: int, runs: int, planned: int, target: float) -> bool:
    """Whether `runs` is a look, and the share is surely above or below its target, or all samples are judged."""
    if runs not in looks(planned):
        return False
    low, high = interval(count, runs, len(looks(planned)))
    return runs == planned or low > target or high < target
