"""p-values of the tests that reject a sentence, read off the very bounds that the rules look at.

A bound at `level` says how far a test reaches: the p-value falls below `level` exactly where the boundary lies beyond
the bound. In between it is that of Student's t, on the scale that the bound sets (normal for outcomes of 0 and 1).
"""

import numpy as np
from scipy import special

from rebinding.verdicts.estimates import Array, Estimate

Number = Array | float


def p_below(ours: Estimate, boundary: float, level: float) -> Array:
    """One-sided p-value of "the mean is at least `boundary`"."""
    high = ours.safe_bounds(1 - 2 * level)[1]
    return _tail(boundary - ours.mean, high - ours.mean, freedom(ours), level)


def p_above(ours: Estimate, boundary: float, level: float) -> Array:
    """One-sided p-value of "the mean is at most `boundary`"."""
    low = ours.safe_bounds(1 - 2 * level)[0]
    return _tail(ours.mean - boundary, ours.mean - low, freedom(ours), level)


def p_outside(gap: Array, margin: Number, down: Array, up: Array, df: Number, level: float) -> Array:
    """p-value of "the difference lies within +-margin", for a `gap` that was seen, its bounds `down` and `up` from it.

    At the edge, +margin, both tails reject: the near one, and beyond -margin the far one. If the margin is small
    against the error of the gap, either has the size of the other, and testing each at `level` would err twice as
    often. Their sum is the probability of a gap this large at the edge itself.
    """
    distance, reach = np.abs(gap), np.where(gap > 0, down, up)
    near, far = (_tail(distance - edge, reach, df, level) for edge in (margin, -margin))
    return np.minimum(1.0, near + far)


def freedom(ours: Estimate) -> Number:
    """Degrees of freedom of the estimate's own error."""
    return np.inf if ours.binary else ours.df


def _tail(clear: Array, reach: Array, df: Number, level: float) -> Array:
    """`clear` is how far the estimate is beyond the boundary, `reach` how far its bound at `level` is from it."""
    clear, reach = np.broadcast_arrays(clear, reach)
    share = np.divide(clear, reach, out=np.where(clear > 0, np.inf, -np.inf), where=reach > 0)
    return np.asarray(special.stdtr(df, share * special.stdtrit(df, level)))
