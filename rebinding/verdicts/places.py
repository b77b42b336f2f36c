"""Claims about the strongest of many places, such as a maximum over layers.

A maximum of noisy means is biased upward, so it is never judged as if it were one mean. "Somewhere" needs one place
that passes at level / places (Bonferroni); "nowhere" needs every place to pass at `level`, and since all of them must
hold at once, no correction is due there.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from rebinding.paper.claim import Rule
from rebinding.verdicts.effects import Support, effect_outcomes, no_effect_outcomes, prepared, reported
from rebinding.verdicts.estimates import Array, Estimate
from rebinding.verdicts.outcome import Outcome, Outcomes, Verdict, per_unit
from rebinding.verdicts.power import needed_units


def effect_somewhere(
    values: npt.ArrayLike, *, margin: float, support: Support | None = None, level: float = 0.05
) -> Verdict:
    """Is there an effect at one place at least? `values` are (places, prompts).

    REPLICATED if one place is surely positive (and not surely negligible), NOT REPLICATED if every place is surely
    below the margin. The numbers reported are those of the place with the largest mean among the deciding ones.
    """
    return _judge("effect", values, margin, support, level)


def nowhere(values: npt.ArrayLike, *, margin: float, support: Support | None = None, level: float = 0.05) -> Verdict:
    """Is the effect at no place? The opposite of an effect at one place at least: doing harm is not an effect."""
    found = effect_somewhere(values, margin=margin, support=support, level=level)
    opposite: dict[Outcome, Outcome] = {"REPLICATED": "NOT REPLICATED", "NOT REPLICATED": "REPLICATED"}
    return replace(found, kind="no-effect", outcome=opposite.get(found.outcome, found.outcome))


def no_effect_anywhere(
    values: npt.ArrayLike, *, margin: float, support: Support | None = None, level: float = 0.05
) -> Verdict:
    """Is there no effect at any place? `values` are (places, prompts).

    REPLICATED if every place is equivalent to 0, NOT REPLICATED if one is surely outside the margin. The numbers
    reported are those of the place farthest from 0 among the deciding ones.
    """
    return _judge("no-effect", values, margin, support, level)


def _judge(kind: Rule, values: npt.ArrayLike, margin: float, support: Support | None, level: float) -> Verdict:
    sample = np.asarray(values)
    if sample.ndim != 2:
        raise ValueError(f"got a sample of shape {sample.shape}, expected (places, prompts), one row per place")
    ours = prepared(kind, sample, margin, "prompts", support)
    if isinstance(ours, Verdict):
        return ours
    places = len(sample)
    rule = effect_outcomes if kind == "effect" else no_effect_outcomes
    outcomes = rule(ours, margin, level, tests=places)
    outcome = _combined(outcomes, one_is_enough="REPLICATED" if kind == "effect" else "NOT REPLICATED")
    size = ours.mean if kind == "effect" else np.abs(ours.mean)
    peak = int(np.where(outcomes == outcome, size, -np.inf).argmax())
    at_peak = _at(ours, peak)
    needed = None
    if outcome == "INCONCLUSIVE":
        needed = needed_units(partial(rule, margin=margin, level=level, tests=places), at_peak)
    together = outcome == ("NOT REPLICATED" if kind == "effect" else "REPLICATED")
    verdict = reported(
        kind,
        outcome,
        at_peak,
        margin=margin,
        origin=0.0,
        level=level if together else level / places,
        needed=needed,
        where=f" at place {peak} of {places}",
    )
    corrected = None if verdict.p_value is None else _family_p(kind, verdict.p_value, places)
    return replace(verdict, p_value=corrected, sample=per_unit(sample[peak]))


def _combined(outcomes: Outcomes, *, one_is_enough: Outcome) -> Outcome:
    opposite: Outcome = "NOT REPLICATED" if one_is_enough == "REPLICATED" else "REPLICATED"
    if (outcomes == one_is_enough).any():
        return one_is_enough
    return opposite if (outcomes == opposite).all() else "INCONCLUSIVE"


def _family_p(kind: Rule, p_value: float, places: int) -> float:
    return p_value if kind == "effect" else min(1.0, p_value * places)


def _at(ours: Estimate, place: int) -> Estimate:
    def one(field: Array | float) -> Array:
        return np.asarray(np.broadcast_to(field, ours.mean.shape)[place])

    return replace(
        ours, mean=one(ours.mean), unit_var=one(ours.unit_var), n=one(ours.n), df=one(ours.df), skew=one(ours.skew)
    )
