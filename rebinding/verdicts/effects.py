"""Effect, ordering and no-effect claims: one mean against one boundary, by two one-sided tests.

`margin` is the smallest change that counts, and the only boundary. For "there is an effect":

    REPLICATED      if the lower 95 % bound is above the margin;
    NOT REPLICATED  if the upper 95 % bound is below it;
    INCONCLUSIVE    otherwise.

For "there is no effect": REPLICATED if the 90 % interval lies within +-margin, NOT REPLICATED if it surely lies outside
(`p_outside`: outside has two sides). So either side has a level of 5 %, more data always lead to a decision (unless
the truth is the boundary itself), and no evidence can satisfy a sentence and its opposite.

Where all examples give the same number the interval is a point. This happens on planted models, and the rules decide
it: N equal positive values have probability 2^-N under a distribution symmetric about 0 (sign test), below 5 % from
N = 5 on, and no rule decides on fewer. Declare bounded quantities (hits, shares) by `support` or as booleans, because
for them N equal values are weak evidence: they still allow a share of 1 - 0.05^(1/N) that differs.

**The strongest of many places**, such as a maximum over layers.

A maximum of noisy means is biased upward, so no rule judges it as a single mean. "Somewhere" needs one place that
passes at level / places (Bonferroni). "Nowhere" needs every place to pass at `level`; all must hold at once, so it
needs no correction.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from rebinding.paper.claim import Rule, Unit
from rebinding.verdicts.estimates import FEWEST_UNITS, Array, Estimate, estimate, freedom, p_above, p_below, p_outside
from rebinding.verdicts.outcome import (
    Outcome,
    Outcomes,
    Verdict,
    decided,
    finite_or_none,
    invalid,
    needed_units,
    per_unit,
    single_outcome,
)

Support = tuple[float, float]
WIDER = "run in a wider dtype (--dtype float32)"
"""The advice for numbers that overflow, or that are too coarse."""


def effect_outcomes(
    measurement: Estimate, margin: float, level: float = 0.05, above: float = 0.0, tests: int = 1
) -> Outcomes:
    """The rule for "greater than `above` by the margin"; REPLICATED is corrected for the best of `tests`."""
    boundary = above + margin
    high = measurement.safe_bounds(1 - 2 * level)[1]
    low = measurement.safe_bounds(1 - 2 * level / tests)[0]
    return decided(low > boundary, high < boundary, enough=measurement.units >= FEWEST_UNITS)


def no_effect_outcomes(measurement: Estimate, margin: float, level: float = 0.05, about: float = 0.0) -> Outcomes:
    """The rule for "equal to `about`"."""
    low, high = (bound - about for bound in measurement.safe_bounds(1 - 2 * level))
    within = (low > -margin) & (high < margin)
    return decided(
        within, p_differs(measurement, margin, level, about) < level, enough=measurement.units >= FEWEST_UNITS
    )


def p_differs(measurement: Estimate, margin: float, level: float, about: float) -> Array:
    """p-value of "the mean is within `margin` of `about`"."""
    low, high = measurement.safe_bounds(1 - 2 * level)
    return p_outside(
        measurement.mean - about, margin, measurement.mean - low, high - measurement.mean, freedom(measurement), level
    )


def effect(
    values: npt.ArrayLike,
    *,
    margin: float,
    above: float = 0.0,
    unit: Unit = "prompts",
    support: Support | None = None,
    level: float = 0.05,
) -> Verdict:
    """Is the mean surely greater than `above`, by the margin or more?"""
    return _judge("effect", np.asarray(values), margin, above, unit, support, level)


def ordering(
    greater: npt.ArrayLike,
    lesser: npt.ArrayLike,
    *,
    margin: float,
    unit: Unit = "prompts",
    support: Support | None = None,
    level: float = 0.05,
) -> Verdict:
    """Is A greater than B on the same examples? The effect rule on the paired differences.

    `support` is the range of a difference A - B, (-1, 1) where both are booleans over prompts. With `unit="nested"`
    one side may be (prompts,) against (draws, prompts) of the other.
    """
    first, second = np.asarray(greater), np.asarray(lesser)
    broadcast = unit == "nested" and first.shape[-1:] == second.shape[-1:]
    if first.shape != second.shape and not broadcast:
        raise ValueError(f"paired samples of shapes {first.shape} and {second.shape}; give both on the same examples")
    if first.dtype == bool and second.dtype == bool and unit == "prompts":
        support = support or (-1.0, 1.0)
    return _judge("ordering", first.astype(np.float64) - second, margin, 0.0, unit, support, level)


def exceeds_random(
    values: npt.ArrayLike, draws: npt.ArrayLike, *, margin: float, support: Support | None = None, level: float = 0.05
) -> Verdict:
    """Is A (prompts,) greater than random choices of its kind, (draws, prompts), usually are?

    The effect rule on the paired differences, with A counted as one more draw: a choice of heads that do nothing lies
    above the mean of ten such choices half of the time, and surely above that mean (`ordering`) in more than a fifth.
    """
    difference = np.asarray(values, dtype=np.float64) - np.asarray(draws, dtype=np.float64)
    return _judge("ordering", difference, margin, 0.0, "nested", support, level, one_more_draw=True)


def no_effect(
    values: npt.ArrayLike,
    *,
    margin: float,
    about: float = 0.0,
    unit: Unit = "prompts",
    support: Support | None = None,
    level: float = 0.05,
) -> Verdict:
    """Is the mean equal to `about` within `margin`? Equivalence, never the absence of significance."""
    return _judge("no-effect", np.asarray(values), margin, about, unit, support, level)


def prepared(
    kind: Rule,
    sample: npt.NDArray[np.generic],
    margin: float,
    unit: Unit,
    support: Support | None,
    origin: float = 0.0,
) -> Estimate | Verdict:
    """The estimate behind a verdict, or INVALID where numbers are not finite; raises for impossible margins."""
    check_margin(kind, margin, allow_zero=kind != "no-effect")
    if not math.isfinite(origin):
        raise ValueError(f"a {kind} claim about {origin}; give the finite number that the mean is compared with")
    numbers = sample.astype(np.float64)
    if not np.isfinite(numbers).all():
        return invalid(kind, "finite", nonfinite_reason(numbers))
    if support is not None and ((numbers < support[0]) | (numbers > support[1])).any():
        raise ValueError(f"values from {numbers.min():.4g} to {numbers.max():.4g} leave the declared support {support}")
    return estimate(sample, unit=unit, support=support)


def nonfinite_reason(numbers: npt.NDArray[np.generic]) -> str:
    """Why numbers that are not all finite cannot be judged."""
    wrong = (~np.isfinite(numbers)).sum()
    return f"{wrong} of {numbers.size} values are NaN or infinite, none may be: {WIDER}"


def check_margin(name: str, margin: float, *, allow_zero: bool = False) -> None:
    """Raise for a margin that decides nothing. Some rules allow 0, with which every change counts."""
    if not (0 <= margin < math.inf) or (margin == 0 and not allow_zero):
        least = "0 or more" if allow_zero else "above 0"
        raise ValueError(f"{name}: a margin of {margin}; give the smallest change that counts, finite and {least}")


def with_numbers(
    kind: Rule,
    outcome: Outcome,
    measurement: Estimate,
    *,
    margin: float,
    origin: float,
    level: float,
    needed: int | None,
    where: str = "",
) -> Verdict:
    """A verdict with its 90 % interval (two one-sided 95 % bounds) and a reason that states the numbers."""
    low, high = (float(bound) for bound in measurement.safe_bounds(1 - 2 * level))
    mean = float(measurement.mean)
    numbers = f"{mean:.4g} in [{low:.3g}, {high:.3g}] against {origin:.3g} +- {margin:.3g}{where}"
    return Verdict(
        kind,
        outcome,
        f"{numbers}: {_meaning(kind, outcome, needed, low > origin)}",
        measured=mean,
        low=finite_or_none(low),
        high=finite_or_none(high),
        margin=margin,
        n=int(measurement.n),
        needed_n=needed,
        against=origin,
        p_value=_p_value(kind, measurement, margin, origin, level),
        confidence=1 - 2 * level,
    )


def _judge(
    kind: Rule,
    sample: npt.NDArray[np.generic],
    margin: float,
    origin: float,
    unit: Unit,
    support: Support | None,
    level: float,
    one_more_draw: bool = False,
) -> Verdict:
    measurement = prepared(kind, sample, margin, unit, support, origin)
    if isinstance(measurement, Verdict):
        return measurement
    if one_more_draw:
        measurement = measurement.as_one_more_draw()
    rule = no_effect_outcomes if kind == "no-effect" else effect_outcomes
    outcome = single_outcome(rule(measurement, margin, level, origin))
    needed = None
    if outcome == "INCONCLUSIVE":
        needed = needed_units(lambda resized: rule(resized, margin, level, origin), measurement)
    verdict = with_numbers(kind, outcome, measurement, margin=margin, origin=origin, level=level, needed=needed)
    return replace(verdict, sample=per_unit(sample))


def _meaning(kind: Rule, outcome: Outcome, needed: int | None, positive: bool) -> str:
    if outcome == "INCONCLUSIVE":
        return "open for any N (more draws may decide)" if needed is None else f"about N = {needed} would decide"
    if kind == "no-effect":
        return "equal within the margin" if outcome == "REPLICATED" else "surely outside the margin"
    if outcome == "REPLICATED":
        return "surely greater by more than the margin"
    return "greater, but surely by less than the margin" if positive else "surely not greater by the margin"


def _p_value(kind: Rule, measurement: Estimate, margin: float, origin: float, level: float) -> float | None:
    """The p-value of the rejecting test: of an effect of `margin` or more, or of a mean within +-margin."""
    if int(measurement.units) < FEWEST_UNITS:
        return None
    if kind != "no-effect":
        return float(p_below(measurement, origin + margin, level))
    return float(p_differs(measurement, margin, level, origin))


def effect_somewhere(values: npt.ArrayLike, *, margin: float, support: Support, level: float = 0.05) -> Verdict:
    """Is there an effect at one place at least? `values` are (places, prompts), all within `support`.

    The range is needed: among a hundred places some have none of the rare low values, so that they look sure.

    REPLICATED if one place is surely positive (and not surely negligible), NOT REPLICATED if every place is surely
    below the margin. The verdict has the numbers of the place with the largest mean among the deciding ones.
    """
    sample = np.asarray(values)
    if sample.ndim != 2:
        raise ValueError(f"got a sample of shape {sample.shape}, expected (places, prompts), one row per place")
    measurement = prepared("effect", sample, margin, "prompts", support)
    if isinstance(measurement, Verdict):
        return measurement
    places = len(sample)
    outcomes = effect_outcomes(measurement, margin, level, tests=places)
    outcome = _combine(outcomes)
    peak = int(np.where(outcomes == outcome, measurement.mean, -np.inf).argmax())
    at_peak = _estimate_at(measurement, peak)
    needed = None
    if outcome == "INCONCLUSIVE":
        needed = needed_units(partial(effect_outcomes, margin=margin, level=level, tests=places), at_peak)
    verdict = with_numbers(
        "effect",
        outcome,
        at_peak,
        margin=margin,
        origin=0.0,
        level=level if outcome == "NOT REPLICATED" else level / places,
        needed=needed,
        where=f" at place {peak} of {places}",
    )
    p_value = None if verdict.p_value is None else float(p_below(measurement, margin, level).max())
    return replace(verdict, p_value=p_value, sample=per_unit(sample[peak]))


def effect_nowhere(values: npt.ArrayLike, *, margin: float, support: Support, level: float = 0.05) -> Verdict:
    """Is the effect at no place? The opposite of `effect_somewhere`: a negative effect is not an effect.

    One place that surely has the effect rejects it, so its p-value is that of the best place times the places.
    """
    somewhere = effect_somewhere(values, margin=margin, support=support, level=level)
    opposite: dict[Outcome, Outcome] = {"REPLICATED": "NOT REPLICATED", "NOT REPLICATED": "REPLICATED"}
    p_value = None
    if somewhere.p_value is not None:
        measurement = estimate(np.asarray(values), unit="prompts", support=support)
        p_value = min(
            1.0, float(p_above(measurement, margin, level / len(measurement.mean)).min()) * len(measurement.mean)
        )
    outcome = opposite.get(somewhere.outcome, somewhere.outcome)
    return replace(somewhere, kind="no-effect", outcome=outcome, p_value=p_value)


def _combine(outcomes: Outcomes) -> Outcome:
    """REPLICATED needs one place, NOT REPLICATED all of them."""
    if (outcomes == "REPLICATED").any():
        return "REPLICATED"
    return "NOT REPLICATED" if (outcomes == "NOT REPLICATED").all() else "INCONCLUSIVE"


def _estimate_at(measurement: Estimate, place: int) -> Estimate:
    def pick(field: Array | float) -> Array:
        return np.asarray(np.broadcast_to(field, measurement.mean.shape)[place])

    return replace(
        measurement,
        mean=pick(measurement.mean),
        unit_var=pick(measurement.unit_var),
        n=pick(measurement.n),
        df=pick(measurement.df),
        skew=pick(measurement.skew),
    )
