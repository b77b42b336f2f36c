"""`--circuit discovered-all-positions`: the circuit that claims are judged on is what the search finds."""

from __future__ import annotations

import pytest

from rebinding.study.model_spec import parse_model
from rebinding.study.model_under_test import ModelUnderTest
from rebinding.study.settings import ALL_POSITIONS, Settings
from rebinding.study.study import Study

NAME = "planted:lexical@llama"


@pytest.mark.slow
def test_the_circuit_of_a_case_is_the_searched_one() -> None:
    """Nothing of what was planted is told to it; it has the planted heads and no other, each at a token where it was
    planted. Its letters say where a head stands."""
    spec = parse_model(NAME)
    model = ModelUnderTest(spec, Settings(models=(spec,), circuit=ALL_POSITIONS))
    study = Study.of(model)
    circuit, planted = study.circuit, model.plant
    assert planted is not None
    assert {(head.layer, head.head) for head in circuit.heads} == {(head.layer, head.head) for head in planted.circuit}
    roles = {name: {head.role for head in circuit.heads if head.group == name} for name in circuit.groups}
    assert roles["D"] == {head.role for head in planted.circuit if head.role.startswith("swap")}
    assert {"A", "B", "C", "D", "E"} == set(roles)
    assert study.has_discovered_circuit
