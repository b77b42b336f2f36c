"""When a row has been judged on enough samples: its share of an outcome lies surely on one side of its target.

Shares are looked at after fixed numbers of samples. The interval of a look is the exact one of Clopper and Pearson at
confidence 1 - 5 % / (number of looks). So with probability 95 % or more the true share lies within the intervals of
all looks, and it does not matter which of them ended the row.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from statsmodels.stats.proportion import proportion_confint

from rebinding.paper.worlds import WorldName

ERROR = 0.05
"""How often an interval may miss the true share, over all looks together."""
FIRST_LOOK = 25
"""After so many samples a share is looked at first: 25 of 25 are surely more than 80 %, and 20 of 20 are not."""
MOST_OF_LONG = 50
"""Rows that discover a circuit are judged on so many samples at most."""
HEADLINE_TARGET, TARGET = 0.9, 0.8
"""The least share of runs in which a row must come out right."""
RIGHT: Mapping[WorldName, str] = MappingProxyType({"paper": "REPLICATED", "rival": "NOT REPLICATED"})
"""The outcome that is right in each world, for a row that the paper asserts."""


def looks(runs: int) -> tuple[int, ...]:
    """The numbers of samples after which a share is looked at: twice as many each time, and all of them."""
    found = []
    number = FIRST_LOOK
    while number < runs:
        found.append(number)
        number *= 2
    return *found, runs


def interval(count: int, runs: int, planned: int) -> tuple[float, float]:
    """The interval of a share, `count` of `runs`, if at most `planned` samples were to be judged."""
    if not runs:
        return 0.0, 1.0
    low, high = proportion_confint(count, runs, alpha=ERROR / len(looks(planned)), method="beta")
    return float(low), float(high)


def is_settled(count: int, runs: int, planned: int, target: float) -> bool:
    """Whether a share is looked at after so many samples, and lies surely above its target or below it."""
    if runs not in looks(planned):
        return False
    low, high = interval(count, runs, planned)
    return runs == planned or low > target or high < target
