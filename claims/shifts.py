"""Parts of sentences about shifts of queries and keys.

Numbers come by unit, or by set of directions (or draw) and unit: then the two are crossed, since prompts that share
their directions are not independent of these.
"""

from __future__ import annotations

from functools import partial

from rebinding.experiments.binding.summary import Array, size
from rebinding.paper.claim import Unit
from rebinding.paper.procedure import Procedure
from rebinding.verdicts import effect, no_effect
from rebinding.verdicts.effects import Support
from rebinding.verdicts.sentences import Part

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


def no_larger(one: Array, control: Array, margin: float, support: Support | None = None) -> Part:
    """The same of how far they go, in whatever direction."""
    return no_more(size(one), size(control), margin, support)


def half_of(one: Array, other: Array) -> Part:
    """However it goes, the first is surely less than half of the other."""
    return more(other / 2 - size(one), 0.0)


def unit_of(values: Array) -> Unit:
    """What the last axis, or both, of such numbers are."""
    return "prompts" if values.ndim == 1 else "nested"
