"""Candidates for differences between the text and the code of section 5, one convention at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rebinding.experiments.binding.conditions import (
    POOLED,
    POOLED_KEYS,
    QK_SOURCE,
    SOURCE,
    RowConditions,
    apply_candidate,
    row_conditions,
)
from rebinding.experiments.binding.request import VARIATIONS, request_shifts
from rebinding.experiments.binding.summary import select_heads_on_slots, shift
from rebinding.experiments.prompts import Stories
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.paper.procedure import BY_PROCEDURE, CHOICE_NAMES, OPEN, RELEASED, BindingConventions, builtin_procedure
from tests.experiments.binding.setup import random_model
from tests.experiments.binding.test_measures import FIRST, evidence, rows

PUBLISHED, CONTROLLED = (builtin_procedure(name).binding for name in ("published", "controlled"))
SOURCE_CHOICE, BOTH_CHOICE = CHOICE_NAMES["source"], CHOICE_NAMES["both"]


def candidates(conventions: BindingConventions, read: tuple[str, ...]) -> dict[str, RowConditions]:
    """The conditions of every candidate for these rows, by name."""
    return {name: row_conditions(candidate) for name, candidate in conventions.possible(read).items()}


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (("q", "k_both"), {RELEASED: ()}),
        (("qk",), {RELEASED: (), SOURCE_CHOICE: SOURCE}),
        (("k_box",), {RELEASED: (), BOTH_CHOICE: POOLED}),
        (("k_object", "qk"), {RELEASED: (), SOURCE_CHOICE: SOURCE, BOTH_CHOICE: POOLED}),
    ],
)
def test_a_candidate_differs_in_one_convention_about_the_rows_that_are_read(read: Any, expected: Any) -> None:
    assert candidates(PUBLISHED, read) == expected
    assert candidates(CONTROLLED, read) == {RELEASED: ()}


def test_the_first_choices_of_a_procedure_are_the_first_candidate() -> None:
    text_first = replace(PUBLISHED, qk_keys=("source", "exchanged"))
    assert candidates(text_first, ("qk", "k_box")) == {
        BY_PROCEDURE: SOURCE,
        CHOICE_NAMES["exchanged"]: (),
        BOTH_CHOICE: SOURCE + POOLED,
    }
    assert candidates(replace(PUBLISHED, qk_keys=("source",)), ("qk",)) == {BY_PROCEDURE: SOURCE}


def test_a_convention_of_the_text_is_about_the_rows_that_its_conditions_stand_for() -> None:
    assert set(OPEN["qk_keys"]) == dict(SOURCE).keys()
    assert set(OPEN["key_means"]) == dict(POOLED).keys()


def test_heads_are_left_out_of_the_evidence_of_a_candidate_too() -> None:
    """The second head has hardly any attention on the slots; the controlled procedure leaves it out."""
    faint = evidence(rows("qk"), rows("qk_source"))
    for slot in (0, 1):
        faint.rows.loc[faint.rows["head"] == 5, f"before_object_{slot}"] *= 0.3
    kinds = {"qk": {"kinds": ["box"]}, "qk_source": {"kinds": ["object"]}}
    candidate = apply_candidate(replace(faint, settings={**faint.settings, "conditions": kinds}), SOURCE)
    judged = select_heads_on_slots(candidate, CONTROLLED)
    assert shift(judged, "qk", "dR") == pytest.approx(FIRST, abs=1e-6) != shift(candidate, "qk", "dR")


def test_rows_are_filled_from_the_conditions_of_a_candidate() -> None:
    rows_of_source = rows("qk_source")
    for row in rows_of_source:
        row["after_logit_0"] = 13.0
    full = evidence(rows("qk"), rows_of_source, rows("k_both"))
    kinds = {"qk": {"kinds": ["box"]}, "qk_source": {"kinds": ["object"]}, "k_both": {"kinds": ["box", "object"]}}
    full = replace(full, settings={**full.settings, "conditions": kinds})
    candidate = apply_candidate(full, SOURCE)
    assert set(candidate.rows["condition"]) == set(candidate.settings["conditions"]) == {"qk", "k_both"}
    assert candidate.settings["conditions"]["qk"] == {"kinds": ["object"]}
    assert (shift(full, "qk", "dlogit"), shift(candidate, "qk", "dlogit")) == (3.5, 13.5)
    assert apply_candidate(full, ()) is full
    with pytest.raises(KeyError):
        apply_candidate(full, POOLED)


def test_the_conditions_of_the_text_are_run_with_the_table() -> None:
    """Only in the variations for the two procedures; the others keep the released table."""
    prompts, heads = Stories(random_model("llama").encoder), Circuit((CircuitHead("B", 1, 0, "readout"),))
    read = {QK_SOURCE, *POOLED_KEYS}
    for name, variation in VARIATIONS.items():
        counts = {"n": 2, "directions": 2, "draws": 1}
        request = request_shifts(prompts, heads, "published", name, PUBLISHED, **counts)
        assert set(request.conditions) - set(variation.conditions) == (read if variation.candidates else set())
    assert [name for name, variation in VARIATIONS.items() if variation.candidates] == ["published", "controlled"]
