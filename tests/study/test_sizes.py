"""Sizes of requests: a planted model gets fewer sets of directions than a procedure has, other models get all."""

from __future__ import annotations

import pytest

from rebinding.paper.procedure import builtin_procedure
from rebinding.study.model_spec import parse_model
from rebinding.study.model_under_test import ModelUnderTest
from rebinding.study.settings import Settings


@pytest.mark.parametrize(("name", "sets"), [("planted:pointer", 6), ("gemma2-9b", 10)])
def test_sets_of_directions(name: str, sets: int) -> None:
    spec = parse_model(name)
    model = ModelUnderTest(spec, Settings((spec,), device="cpu"))
    assert model.conventions("controlled").binding.batches == sets
    assert model.conventions("published") == builtin_procedure("published"), "one set is not more than six"
