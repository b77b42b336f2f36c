"""Evidence of section 5: its request, its candidate, and the heads that count."""

from __future__ import annotations

from rebinding.evidence import Evidence
from rebinding.experiments.binding.conditions import RowConditions, apply_candidate
from rebinding.experiments.binding.request import Shifts, request_shifts
from rebinding.experiments.binding.summary import attention_on_slots, with_heads
from rebinding.paper.circuit import Circuit
from rebinding.paper.procedure import BindingConventions
from rebinding.study.model_under_test import ModelUnderTest
from rebinding.verdicts import require, slot_mass
from rebinding.verdicts.gates import LEAST_MASS


def request_of(
    model: ModelUnderTest, circuit: Circuit, conventions: BindingConventions, variation: str, *, n: int, cut: int
) -> Shifts:
    """The request for one variation of shifts, at the sizes of the model."""
    return request_shifts(
        model.session.prompts,
        circuit,
        model.settings.design,
        variation,
        conventions,
        n=n,
        directions=model.sizes.directions(conventions.batches),
        draws=model.sizes.draws,
        cut=cut,
    )


def select_judged_rows(evidence: Evidence, conventions: BindingConventions, candidate: RowConditions = ()) -> Evidence:
    """The evidence of one candidate, restricted to the heads that count under a procedure."""
    return select_heads_on_slots(apply_candidate(evidence, candidate), conventions)


def select_heads_on_slots(evidence: Evidence, conventions: BindingConventions) -> Evidence:
    """All heads, or those with attention on the compared slots; a gate fails where there are none."""
    if conventions.heads == "all":
        return evidence
    table = attention_on_slots(evidence)
    require(slot_mass(table["share"]))
    enough = table[table["share"] >= LEAST_MASS]
    if len(enough) == len(table):
        return evidence
    return with_heads(evidence, frozenset(zip(enough["layer"], enough["head"], strict=True)))
