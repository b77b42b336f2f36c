"""Claims about the strongest of many places, such as a maximum over layers.

A maximum of noisy means is biased upward, so it is never judged as if it were one mean. "Somewhere" needs one place
that passes at level / places (Bonferroni); "nowhere" needs every place to pass at `level`, and since all of them must
hold at once, no correction is due there.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from rebinding.verdicts.effects import Support, effect_outcomes, prepared, with_numbers
from rebinding.verdicts.estimates import Array, Estimate, estimate, p_above, p_below
from rebinding.verdicts.outcome import Outcome, Outcomes, Verdict, per_unit
from rebinding.verdicts.power import needed_units


def effect_somewhere(
    values: npt.ArrayLike, *, margin: float, support: Support | None = None, level: float = 0.05
) -> Verdict:
    """Is there an effect at one place at least? `values` are (places, prompts).

    REPLICATED if one place is surely positive (and not surely negligible), NOT REPLICATED if every place is surely
    below the margin. The numbers reported are those of the place with the largest mean among the deciding ones.
    """
    sample = np.asarray(values)
    if sample.ndim != 2:
        raise ValueError(f"got a sample of shape {sample.shape}, expected (places, prompts), one row per place")
    ours = prepared("effect", sample, margin, "prompts", support)
    if isinstance(ours, Verdict):
        return ours
    places = len(sample)
    outcomes = effect_outcomes(ours, margin, level, tests=places)
    outcome = _combined(outcomes)
    peak = int(np.where(outcomes == outcome, ours.mean, -np.inf).argmax())
    at_peak = _at(ours, peak)
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
    together = None if verdict.p_value is None else float(p_below(ours, margin, level).max())
    return replace(verdict, p_value=together, sample=per_unit(sample[peak]))


def nowhere(values: npt.ArrayLike, *, margin: float, support: Support | None = None, level: float = 0.05) -> Verdict:
    """Is the effect at no place? The opposite of an effect at one place at least: doing harm is not an effect.

    What rejects it is one place that surely has the effect, so its p-value is that of the best place, times the places.
    """
    found = effect_somewhere(values, margin=margin, support=support, level=level)
    opposite: dict[Outcome, Outcome] = {"REPLICATED": "NOT REPLICATED", "NOT REPLICATED": "REPLICATED"}
    rejecting = None
    if found.p_value is not None:
        ours = estimate(np.asarray(values), unit="prompts", support=support)
        rejecting = min(1.0, float(p_above(ours, margin, level / len(ours.mean)).min()) * len(ours.mean))
    return replace(found, kind="no-effect", outcome=opposite.get(found.outcome, found.outcome), p_value=rejecting)


def _combined(outcomes: Outcomes) -> Outcome:
    """One place is enough; against it all must speak."""
    if (outcomes == "REPLICATED").any():
        return "REPLICATED"
    return "NOT REPLICATED" if (outcomes == "NOT REPLICATED").all() else "INCONCLUSIVE"


def _at(ours: Estimate, place: int) -> Estimate:
    def one(field: Array | float) -> Array:
        return np.asarray(np.broadcast_to(field, ours.mean.shape)[place])

    return replace(
        ours, mean=one(ours.mean), unit_var=one(ours.unit_var), n=one(ours.n), df=one(ours.df), skew=one(ours.skew)
    )
