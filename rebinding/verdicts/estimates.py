"""Estimates with intervals and p-values from samples, for each resampling unit.

A p-value follows from the bound that a rule uses: it falls below `level` exactly where the boundary lies beyond the
bound at `level`. In between it is that of Student's t, on the scale that the bound sets (normal for outcomes of 0 and
1).

Everything broadcasts over leading axes, so that a simulation of thousands of experiments runs the same code as one.
"""

from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, ndtri, stdtr, stdtrit

from rebinding.paper.claim import Unit

Array = npt.NDArray[np.float64]
Number = Array | float

FEWEST_UNITS = 5
"""Below this no rule decides: five equal signs are the fewest that a sign test calls surprising (2^-5 < 5 %)."""


@dataclass(frozen=True)
class Estimate:
    """A mean over a resampling unit and the parts of its variance.

    Var(mean) = draw_var / draws + unit_var / n + rest_var / (draws n). With a single kind of unit only `unit_var` is
    nonzero. Fields have the shape of the leading axes of the sample. `binary` marks 0/1 outcomes, whose intervals are
    binomial; `support` is the range of a bounded quantity; `skew` is the skewness of the sample.
    """

    mean: Array  # (...)
    unit_var: Array  # (...)
    n: Array  # (...) units: prompts, or draws where draws are the only unit
    df: Array  # (...)
    binary: bool = False
    support: tuple[float, float] | None = None
    skew: float | Array = 0.0
    draw_var: float | Array = 0.0
    rest_var: float | Array = 0.0
    draws: int | None = None  # with nested samples only

    @property
    def units(self) -> Array:
        """The smaller number of independent units behind the mean."""
        return self.n if self.draws is None else np.minimum(self.n, self.draws)

    def variance(self, n: Array | float, draws: float = 1.0) -> Array:
        """Variance of the mean over `n` units (and `draws` draws) with the spread of this sample."""
        return np.asarray(self.draw_var / draws + self.unit_var / n + self.rest_var / (draws * n))

    @property
    def se(self) -> Array:
        """Standard error of the mean."""
        return np.sqrt(self.variance(self.n, self.draws or 1))

    def with_n(self, n: Array, shift: float = 0.0) -> "Estimate":
        """The estimate as it would be from `n` units, `shift` standard errors away."""
        df = n - 1 if self.draws is None else self.df
        scaled = replace(self, n=n, df=df, mean=np.broadcast_to(self.mean, n.shape))
        mean = scaled.mean + shift * scaled.se
        return replace(scaled, mean=mean if self.support is None else np.clip(mean, *self.support))

    def as_one_more_draw(self) -> "Estimate":
        """The estimate, if what the draws are compared with was drawn like them: it spreads as the draws' means do.

        Degrees of freedom are Satterthwaite's, of the draws' part of the variance and of the prompts'.
        """
        assert self.draws is not None
        of_draw = self.draw_var + self.rest_var / self.n  # the variance of a draw's mean
        part, rest = of_draw * (1 + 1 / self.draws), self.unit_var / self.n
        scatter = part**2 / max(self.draws - 1, 1) + rest**2 / np.maximum(self.n - 1, 1)
        is_known = (scatter > 0) & np.isfinite(scatter)  # of a single draw or prompt nothing is known
        df = np.divide((part + rest) ** 2, scatter, out=np.asarray(self.df, np.float64).copy(), where=is_known)
        return replace(self, draw_var=of_draw * (self.draws + 1), rest_var=0.0, df=df)

    def bounds(self, level: float) -> tuple[Array, Array]:
        """Two-sided interval at confidence `level`: Wilson for 0/1 outcomes, else Student's t, widened by its
        correction for skewness. Without that a long tail breaks the error rate on one side (6.4 % for 5 % on 300
        exponential values, 9 % on 30).
        """
        if self.binary:
            return wilson(self.mean, self.n, level)
        quantile = students(level, self.df)
        down = np.maximum(quantile, _unskewed(quantile, self.skew, self.n))
        up = np.maximum(quantile, -_unskewed(-quantile, self.skew, self.n))
        return self.mean - down * self.se, self.mean + up * self.se

    def safe_bounds(self, level: float) -> tuple[Array, Array]:
        """Like `bounds`, widened where those are too short to keep each tail at (1 - level) / 2.

        Wilson's interval errs in up to 8 % of cases at unlucky N where 5 % are allowed, so the result covers the exact
        one too. For a bounded quantity whose sample hardly varies the interval allows for unseen cases: if a share q of
        prompts differed, N equal ones would have probability (1 - q)^N, so q up to 1 - tail^(1/N) cannot be excluded.
        In a nested sample N counts prompts: a circuit that answers none of 24 prompts does so in every draw.
        """
        low, high = self.bounds(level)
        tail = (1 - level) / 2
        if self.binary:
            exact = clopper_pearson(self.mean * self.n, self.n, level)
            return np.minimum(low, exact[0]), np.maximum(high, exact[1])
        if self.support is None:
            return low, high
        unseen = 1 - tail ** (1 / self.n)
        low = np.minimum(low, self.mean - (self.mean - self.support[0]) * unseen)
        high = np.maximum(high, self.mean + (self.support[1] - self.mean) * unseen)
        return np.clip(low, *self.support), np.clip(high, *self.support)


def students(level: float, df: Array) -> Array:
    """The half-width of an interval of Student's t, in standard errors (`scipy.stats.t.ppf` without its checks)."""
    return np.asarray(stdtrit(df, (1 + level) / 2), dtype=np.float64)


def wilson(mean: Array | float, n: Array | float, level: float) -> tuple[Array, Array]:
    """Wilson's score interval of a proportion; `mean * n` need not be a whole number."""
    quantile = ndtri((1 + level) / 2)
    centre = mean + quantile**2 / (2 * n)
    half = quantile * np.sqrt(mean * (1 - mean) / n + quantile**2 / (4 * n**2))
    scale = 1 + quantile**2 / n
    return np.clip((centre - half) / scale, 0, 1), np.clip((centre + half) / scale, 0, 1)


def clopper_pearson(count: Array | float, n: Array | float, level: float) -> tuple[Array, Array]:
    """The exact interval of a proportion, `count` of `n`; a count need not be a whole number."""
    tail, count = (1 - level) / 2, np.asarray(count, dtype=np.float64)
    others = n - count
    # where a count is 0 the function does not exist, and the end is that of the range
    low = np.where(count > 0, betaincinv(np.maximum(count, 1e-300), others + 1, tail), 0.0)
    high = np.where(others > 0, betaincinv(count + 1, np.maximum(others, 1e-300), 1 - tail), 1.0)
    return low, high


def _unskewed(quantile: Array | float, skew: Array | float, n: Array) -> Array:
    """The quantile of t in a skewed sample: Hall's cubic transformation, inverted (Hall 1992)."""
    even = np.abs(skew) < 1e-6
    skew = np.where(even, 1.0, skew)
    root = np.sqrt(n)
    corrected = root * (np.cbrt(1 + skew * (quantile / root - skew / (6 * n))) - 1) * 3 / skew
    return np.where(even, quantile, corrected)


def estimate(values: npt.ArrayLike, *, unit: Unit, support: tuple[float, float] | None = None) -> Estimate:
    """Estimate the mean of `values` with its spread over the declared resampling unit.

    `prompts`, `circuit draws`, `direction draws`: values are (..., units), one number per unit. Booleans are 0/1
    outcomes and get binomial intervals. `nested`: values are (..., draws, prompts), the same prompts under every draw.
    """
    if unit not in get_args(Unit):
        raise ValueError(f"unknown unit {unit!r}; give one of {', '.join(get_args(Unit))}")
    sample = np.asarray(values)
    axes = 2 if unit == "nested" else 1
    if sample.ndim < axes or 0 in sample.shape:
        expected = "(draws, prompts)" if unit == "nested" else f"one number per unit ({unit})"
        raise ValueError(f"got a sample of shape {sample.shape}, expected {expected} with no empty axis")
    if unit == "nested":
        return _estimate_nested(sample.astype(np.float64), support)
    return _estimate_hits(sample) if sample.dtype == bool else _estimate_mean(sample.astype(np.float64), support)


def _estimate_mean(sample: Array, support: tuple[float, float] | None) -> Estimate:
    n = sample.shape[-1]
    mean = sample.mean(-1)
    if n == 1:
        return Estimate(mean, np.full_like(mean, np.inf), *_counts(mean, n), support=support)
    equal = np.ptp(sample, axis=-1) == 0  # rounding in the mean must not look like spread
    mean = np.where(equal, sample[..., 0], mean)
    spread = np.where(equal, 0.0, sample.var(-1, ddof=1))
    scale = np.where(spread > 0, spread * (n - 1) / n, np.inf)
    skew = (((sample - mean[..., None]) / np.sqrt(scale)[..., None]) ** 3).mean(-1)
    return Estimate(mean, spread, *_counts(mean, n), support=support, skew=skew)


def _estimate_hits(sample: npt.NDArray[Any]) -> Estimate:
    n = sample.shape[-1]
    count = sample.sum(-1).astype(np.float64)
    shrunk = (count + 2) / (n + 4)  # never 0 or 1: all-equal outcomes do not prove that there is no spread
    return Estimate(count / n, shrunk * (1 - shrunk), *_counts(count, n), binary=True, support=(0.0, 1.0))


def _counts(mean: Array, n: int) -> tuple[Array, Array]:
    return np.full_like(mean, n), np.full_like(mean, max(n - 1, 1))


def _estimate_nested(sample: Array, support: tuple[float, float] | None) -> Estimate:
    """Variance components of draws x prompts, both random (method of moments, negative components set to 0).

    MS_draw, MS_prompt and MS_rest estimate rest + P draw, rest + D prompt and rest; the degrees of freedom of the
    mean's variance are Satterthwaite's. New prompts for every draw are the case prompt = 0. The third moment of the
    mean is that of the draws' means plus that of the prompts' means; `skew` is the skewness of N independent prompts
    whose mean has the same third moment.
    """
    draws, prompts = sample.shape[-2:]
    mean = sample.mean((-2, -1))
    if min(draws, prompts) < 2:
        return Estimate(mean, np.full_like(mean, np.inf), *_counts(mean, prompts), support=support, draws=draws)
    centre = mean[..., None, None]
    by_draw = sample.mean(-1, keepdims=True) - centre  # (..., draws, 1)
    by_prompt = sample.mean(-2, keepdims=True) - centre  # (..., 1, prompts)
    rest = sample - by_draw - by_prompt - centre
    freedom = (draws - 1, prompts - 1, (draws - 1) * (prompts - 1))
    ms_draw = prompts * by_draw.var((-2, -1)) * draws / freedom[0]
    ms_prompt = draws * by_prompt.var((-2, -1)) * prompts / freedom[1]
    ms_rest = (rest**2).sum((-2, -1)) / freedom[2]
    draw_var = np.maximum(ms_draw - ms_rest, 0) / prompts
    prompt_var = np.maximum(ms_prompt - ms_rest, 0) / draws
    total = prompts * draw_var + draws * prompt_var + ms_rest
    scatter = ms_draw**2 / freedom[0] + ms_prompt**2 / freedom[1] + ms_rest**2 / freedom[2]
    df = np.divide(total**2, scatter, out=np.full_like(total, freedom[0]), where=scatter > 0)
    n, _ = _counts(mean, prompts)
    measurement = Estimate(mean, prompt_var, n, df, support=support, draw_var=draw_var, rest_var=ms_rest, draws=draws)
    third = (by_draw**3).mean((-2, -1)) / draws**2 + (by_prompt**3).mean((-2, -1)) / prompts**2
    scale = np.where(measurement.se > 0, measurement.se, np.inf)
    return replace(measurement, skew=np.sqrt(prompts) * third / scale**3)


def p_below(measurement: Estimate, boundary: float, level: float) -> Array:
    """One-sided p-value of "the mean is at least `boundary`"."""
    high = measurement.safe_bounds(1 - 2 * level)[1]
    return _tail(boundary - measurement.mean, high - measurement.mean, freedom(measurement), level)


def p_above(measurement: Estimate, boundary: float, level: float) -> Array:
    """One-sided p-value of "the mean is at most `boundary`"."""
    low = measurement.safe_bounds(1 - 2 * level)[0]
    return _tail(measurement.mean - boundary, measurement.mean - low, freedom(measurement), level)


def p_outside(gap: Array, margin: Number, down: Array, up: Array, df: Number, level: float) -> Array:
    """p-value of "the difference lies within +-margin", from the measured `gap` and the distances `down` and `up` to
    its bounds.

    At the edge, +margin, both tails reject: the near one, and the far one beyond -margin. If the margin is small
    compared with the error of the gap, both have about the same size, and testing each at `level` would err twice as
    often. Their sum is the probability of a gap this large at the edge itself.
    """
    distance, reach = np.abs(gap), np.where(gap > 0, down, up)
    near, far = (_tail(distance - edge, reach, df, level) for edge in (margin, -margin))
    return np.minimum(1.0, near + far)


def freedom(measurement: Estimate) -> Number:
    """Degrees of freedom of the estimate's own error."""
    return np.inf if measurement.binary else measurement.df


def _tail(distance: Array, reach: Array, df: Number, level: float) -> Array:
    """p-value of an estimate at `distance` beyond the boundary, if its bound at `level` is `reach` away from it."""
    distance, reach = np.broadcast_arrays(distance, reach)
    share = np.divide(distance, reach, out=np.where(distance > 0, np.inf, -np.inf), where=reach > 0)
    return np.asarray(stdtr(df, share * stdtrit(df, level)))
