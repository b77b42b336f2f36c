"""Judging simulated experiments: how often may an outcome appear by luck?"""

import numpy as np
import numpy.typing as npt
from scipy import stats

REPETITIONS = 4000
FALSE_ALARM = 1e-6
"""How often a correct rule may fail one of these tests; every threshold follows from it."""


def share(outcomes: npt.NDArray[np.str_], outcome: str) -> float:
    """How often an outcome appeared."""
    return float((outcomes == outcome).mean())


def rate_is_at_most(rate: float, repetitions: int = REPETITIONS) -> float:
    """The share that a rule with error `rate` exceeds with probability `FALSE_ALARM` only (binomial quantile)."""
    return float(stats.binom.ppf(1 - FALSE_ALARM, repetitions, rate)) / repetitions


def rate_is_at_least(rate: float, repetitions: int = REPETITIONS) -> float:
    """The share that a rule with power `rate` falls short of with probability `FALSE_ALARM` only."""
    return float(stats.binom.ppf(FALSE_ALARM, repetitions, rate)) / repetitions
