"""Claims about the strongest of many places, such as a maximum over layers.

A maximum of noisy means is biased upward, so no rule judges it as a single mean. "Somewhere" needs one place that
passes at level / places (Bonferroni). "Nowhere" needs every place to pass at `level`; all must hold at once, so it
needs no correction.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from rebinding.verdicts.effects import Support, effect_outcomes, prepared, with_numbers
from rebinding.verdicts.estimates import Array, Estimate, estimate, p_above, p_below
from rebinding.verdicts.outcome import Outcome, Outcomes, Verdict, per_unit
from rebinding.verdicts.power import needed_units


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
