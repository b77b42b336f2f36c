"""The judge is blind: nothing in a test of a claim can see what was planted, or how a model was loaded."""

from __future__ import annotations

import ast

import pytest

from rebinding.study.study import Study
from tests.tree.syntax_trees import trees

HIDDEN = ("truth", "plant", "planted", "bench", "case", "subject", "surgeon", "spec", "expected")


@pytest.mark.parametrize("name", [module for module in trees() if module.startswith("claims.")])
def test_no_claim_asks_for_what_was_planted(name: str) -> None:
    attributes = {node.attr for node in ast.walk(trees()[name]) if isinstance(node, ast.Attribute)}
    assert not attributes & set(HIDDEN)
    assert not [attribute for attribute in attributes if attribute.startswith("_")]


def test_a_study_shows_nothing_that_is_hidden() -> None:
    public = {name for name in [*vars(Study), *Study.__dataclass_fields__] if not name.startswith("_")}
    assert not public & set(HIDDEN)
    assert {"binding", "trace_residuals", "discoveries", "printed", "circuit"} <= public


def test_expectations_are_compared_in_one_place() -> None:
    """`Truth` is read where a judgement is made, by the case, and where it is said how many prompts a plant needs."""
    calls = [
        name
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in ("truth", "truth_of")
        and not name.startswith("rebinding.planted")
    ]
    assert set(calls) <= {"fixtures.judging", "rebinding.study.model_under_test", "rebinding.study.sizes"}
