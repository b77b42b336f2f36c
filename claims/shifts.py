"""Settings and parts of sentences that the rows about shifts of queries and keys share.

Values have the shape (unit,), or (set of directions or draw, unit). The latter are crossed, because prompts that share
directions are not independent.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from rebinding.evidence import Evidence
from rebinding.experiments.binding.summary import shift
from rebinding.paper.claim import Unit
from rebinding.paper.procedure import Procedure
from rebinding.verdicts import effect, no_effect
from rebinding.verdicts.effects import Support
from rebinding.verdicts.estimates import Array
from rebinding.verdicts.sentences import Part

PLACE = "group B, keys of its KV groups, at the readout; raw projections; read on the shifted tokens; slot 1 to 0"
OTHER_MODELS = {"source": "section 6, binding ID matching"}
EVERY_MODEL = {"source": f"section 5, results; {OTHER_MODELS['source']}"}
ROW: dict[str, Any] = {"source": "section 5, results", "where": PLACE, "group": "B"}
CONTROLLED = {
    "where": "each head of group B with attention on the slots, at the readout; raw projections; read on box and"
    " object; all ordered slot pairs",
    "unit": "nested",
    "n": 180,
}
"""Every unit has each ordered pair of slots once. Units are crossed with ten sets of directions, measured on other
prompts with other words."""
TWICE = ROW | {"controlled": CONTROLLED}
KEYS = ("k_both", "k_box", "k_object")
SWITCHES = {"head": ("switch",), "example": ("switch_example",), "either": ("switch", "switch_example")}


def switches(procedure: Procedure) -> tuple[str, ...]:
    """The measures that a printed share of switches may mean."""
    return SWITCHES[procedure.binding.switch]


def mean_is_above(values: Array, margin: float, above: float = 0.0, support: Support | None = None) -> Part:
    """The mean surely exceeds `above` by the margin.

    `support` applies to values by prompt alone. Crossed with sets of directions, a share of switches is a mean over
    heads and over an example of every pair of slots, not a yes or no: its range leaves no room for unseen stories.
    """
    unit = unit_of(values)
    bounds = support if unit == "prompts" else None
    return partial(effect, values, margin=margin, above=above, unit=unit, support=bounds)


def mean_is_zero(values: Array, margin: float) -> Part:
    """The mean surely stays within the margin, in both directions."""
    return partial(no_effect, values, margin=margin, unit=unit_of(values))


def mean_exceeds(greater: Array, lesser: Array, margin: float) -> Part:
    """The first mean surely exceeds the second by the margin."""
    return mean_is_above(greater - lesser, margin)


def mean_does_not_exceed(lesser: Array, greater: Array, margin: float, support: Support | None = None) -> Part:
    """The first mean surely does not exceed the second by the margin."""
    return mean_is_above(greater - lesser, 0.0, above=-margin, support=support)


def mean_is_not_positive(values: Array, margin: float) -> Part:
    """The mean surely does not exceed 0 by the margin."""
    return mean_is_above(-values, 0.0, above=-margin)


def exceeds_draws(
    evidence: Evidence, condition: str, random: str, measure: str, margin: float
) -> npt.NDArray[np.bool_]:
    """Whether the mean shift of a condition exceeds the mean size of each random draw by the margin: (draw,)."""
    sizes = np.abs(shift(evidence, random, measure).mean(axis=-1))
    return np.asarray(sizes + margin < shift(evidence, condition, measure).mean())


def unit_of(values: Array) -> Unit:
    """The unit of such values: prompts, or draws crossed with prompts."""
    return "prompts" if values.ndim == 1 else "nested"
