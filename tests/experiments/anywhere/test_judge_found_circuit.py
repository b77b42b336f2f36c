"""`--circuit discovered-anywhere`: the circuit that claims are judged on is what the search finds."""

from __future__ import annotations

import pytest

from rebinding.study.model_spec import parse_model
from rebinding.study.model_under_test import ModelUnderTest
from rebinding.study.settings import ANYWHERE, Settings
from rebinding.study.study import Study

NAME = "planted:lexical@llama"


@pytest.mark.slow
def test_the_circuit_of_a_case_is_the_searched_one() -> None:
    """Nothing of what was planted is told to it; it has the planted heads and no other, each at a token where it was
    planted. Its letters say where a head stands."""
    asked = parse_model(NAME)
    case = ModelUnderTest(asked, Settings(models=(asked,), circuit=ANYWHERE))
    study = Study.of(case)
    found, planted = study.circuit, case.plant
    assert planted is not None
    assert {(one.layer, one.head) for one in found.heads} == {(one.layer, one.head) for one in planted.circuit}
    roles = {name: {one.role for one in found.heads if one.group == name} for name in found.groups}
    assert roles["D"] == {one.role for one in planted.circuit if one.role.startswith("swap")}
    assert {"A", "B", "C", "D", "E"} == set(roles)
    assert study.found_here
