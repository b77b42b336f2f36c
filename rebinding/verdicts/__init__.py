"""Estimates, intervals and the rules that turn evidence into verdicts."""

from rebinding.verdicts.effects import effect, exceeds_random, no_effect, ordering
from rebinding.verdicts.estimates import Estimate, estimate
from rebinding.verdicts.families import Family, family
from rebinding.verdicts.gates import (
    Gate,
    GateFailed,
    above_chance,
    above_guessing,
    circuit_found,
    declared_n,
    edits_change_values,
    equal_lengths,
    finite,
    group_present,
    guarded,
    noise_floor,
    replay_equals_forward,
    require,
    requirement,
    slot_mass,
)
from rebinding.verdicts.outcome import Outcome, Verdict, invalid, not_applicable, reported
from rebinding.verdicts.places import effect_nowhere, effect_somewhere
from rebinding.verdicts.ranks import rank_overlap
from rebinding.verdicts.sets import absence, emptiness, overlap
from rebinding.verdicts.values import value, value_unidentified

__all__ = [
    "Estimate",
    "Family",
    "Gate",
    "GateFailed",
    "Outcome",
    "Verdict",
    "above_chance",
    "above_guessing",
    "absence",
    "circuit_found",
    "declared_n",
    "edits_change_values",
    "effect",
    "effect_nowhere",
    "effect_somewhere",
    "emptiness",
    "equal_lengths",
    "estimate",
    "exceeds_random",
    "family",
    "finite",
    "group_present",
    "guarded",
    "invalid",
    "no_effect",
    "noise_floor",
    "not_applicable",
    "ordering",
    "overlap",
    "rank_overlap",
    "replay_equals_forward",
    "reported",
    "require",
    "requirement",
    "slot_mass",
    "value",
    "value_unidentified",
]
