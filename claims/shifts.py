"""What rows about shifts of queries and keys have in common, and parts of their sentences.

Numbers come by unit, or by set of directions (or draw) and unit: then the two are crossed, since prompts that share
their directions are not independent of these.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from rebinding.evidence import Evidence
from rebinding.experiments.binding.summary import Array, shift
from rebinding.paper.claim import Unit
from rebinding.paper.procedure import Procedure
from rebinding.verdicts import effect, no_effect
from rebinding.verdicts.effects import Support
from rebinding.verdicts.sentences import Part

WHERE = "group B, keys of its KV groups, at the readout; raw projections; read on the shifted tokens; slot 1 to 0"
ROW: dict[str, Any] = {"source": "section 5, results", "where": WHERE, "group": "B"}
CONTROLLED = {
    "where": "each head of group B with attention on the slots, at the readout; raw projections; read on box and"
    " object; all ordered slot pairs",
    "unit": "nested",
    "n": 180,
}
"""Every ordered pair of slots once a unit, crossed with ten sets of directions that were measured on other prompts with
other words."""
TWICE = ROW | {"controlled": CONTROLLED}
KEYS = ("k_both", "k_box", "k_object")
SWITCHES = {"head": ("switch",), "example": ("switch_example",), "either": ("switch", "switch_example")}


def switches(procedure: Procedure) -> tuple[str, ...]:
    """The measures that a share of switches may be."""
    return SWITCHES[procedure.binding.switch]


def more(values: Array, margin: float, above: float = 0.0, support: Support | None = None) -> Part:
    """Surely more than `above`, by what counts.

    A share of switches that is crossed with sets of directions is a mean over heads and over an example of every pair
    of slots, and no outcome that is there or not: its range leaves no room for stories that were not met.
    """
    unit = unit_of(values)
    alone = support if unit == "prompts" else None
    return partial(effect, values, margin=margin, above=above, unit=unit, support=alone)


def nothing(values: Array, margin: float) -> Part:
    """Surely not what counts, in either direction."""
    return partial(no_effect, values, margin=margin, unit=unit_of(values))


def over(greater: Array, lesser: Array, margin: float) -> Part:
    """The one is surely more than the other, by what counts."""
    return more(greater - lesser, margin)


def no_more(lesser: Array, greater: Array, margin: float, support: Support | None = None) -> Part:
    """The first surely does not exceed the other by what counts."""
    return more(greater - lesser, 0.0, above=-margin, support=support)


def not_above(values: Array, margin: float) -> Part:
    """Surely not more than 0, by what counts."""
    return more(-values, 0.0, above=-margin)


def exceeds_draws(
    evidence: Evidence, condition: str, random: str, measure: str, margin: float
) -> npt.NDArray[np.bool_]:
    """Whether the mean shift of a condition exceeds the mean size of each random draw by what counts: (draw,)."""
    sizes = np.abs(shift(evidence, random, measure).mean(axis=-1))
    return np.asarray(sizes + margin < shift(evidence, condition, measure).mean())


def unit_of(values: Array) -> Unit:
    """What the last axis, or both, of such numbers are."""
    return "prompts" if values.ndim == 1 else "nested"
