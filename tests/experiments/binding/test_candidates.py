"""What text and code of section 5 say differently: one convention at a time, and what is run for each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rebinding.experiments.binding.candidates import CHOICES, GIVEN, POOLED, RELEASED, SOURCE, candidates
from rebinding.experiments.binding.conditions import POOLED_KEYS, QK_SOURCE
from rebinding.experiments.binding.renamed import under
from rebinding.experiments.binding.request import VARIATIONS, request_shifts
from rebinding.experiments.binding.summary import shift
from rebinding.experiments.prompts import Prompts
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.paper.procedure import given
from tests.experiments.binding.setup import random_model
from tests.experiments.binding.test_measures import evidence, rows

PUBLISHED, CONTROLLED = (given(name).binding for name in ("published", "controlled"))
ALONE, BOTH = CHOICES["source"][0], CHOICES["both"][0]


@pytest.mark.parametrize(
    ("read", "found"),
    [
        (("q", "k_both"), {RELEASED: ()}),
        (("qk",), {RELEASED: (), ALONE: SOURCE}),
        (("k_box",), {RELEASED: (), BOTH: POOLED}),
        (("k_object", "qk"), {RELEASED: (), ALONE: SOURCE, BOTH: POOLED}),
    ],
)
def test_a_candidate_differs_in_one_convention_about_the_rows_that_are_read(read: Any, found: Any) -> None:
    assert candidates(PUBLISHED, read) == found
    assert candidates(CONTROLLED, read) == {RELEASED: ()}


def test_a_procedure_of_ones_own_begins_elsewhere() -> None:
    text_first = replace(PUBLISHED, qk_keys=("source", "exchanged"))
    assert candidates(text_first, ("qk", "k_box")) == {
        GIVEN: SOURCE,
        CHOICES["exchanged"][0]: (),
        BOTH: SOURCE + POOLED,
    }
    assert candidates(replace(PUBLISHED, qk_keys=("source",)), ("qk",)) == {GIVEN: SOURCE}


def test_rows_are_filled_from_the_conditions_of_a_candidate() -> None:
    other = rows("qk_source")
    for row in other:
        row["after_logit_0"] = 13.0
    whole = evidence(rows("qk"), other, rows("k_both"))
    kinds = {"qk": {"kinds": ["box"]}, "qk_source": {"kinds": ["object"]}, "k_both": {"kinds": ["box", "object"]}}
    whole = replace(whole, settings={**whole.settings, "conditions": kinds})
    told = under(whole, SOURCE)
    assert set(told.rows["condition"]) == set(told.settings["conditions"]) == {"qk", "k_both"}
    assert told.settings["conditions"]["qk"] == {"kinds": ["object"]}
    assert (shift(whole, "qk", "dlogit"), shift(told, "qk", "dlogit")) == (3.5, 13.5)
    assert under(whole, ()) is whole
    with pytest.raises(KeyError):
        under(whole, POOLED)


def test_the_conditions_of_the_text_are_run_beside_the_table() -> None:
    """For the rows of the procedures; what varies something else keeps the released table."""
    prompts, heads = Prompts(random_model("llama").encoder), Circuit((CircuitHead("B", 1, 0, "readout"),))
    more = {QK_SOURCE, *POOLED_KEYS}
    for name, variation in VARIATIONS.items():
        counts = {"n": 2, "directions": 2, "draws": 1}
        asked = request_shifts(prompts, heads, "published", name, PUBLISHED, **counts)
        assert set(asked.conditions) - set(variation.conditions) == (more if variation.candidates else set())
    assert [name for name, one in VARIATIONS.items() if one.candidates] == ["published", "controlled"]
