"""The judge is blind: nothing in a test of a claim can see what was planted, or how a model was loaded."""

from __future__ import annotations

import ast
import inspect

import pytest

from rebinding.experiments.workbench import Workbench
from rebinding.study.model_under_test import ModelUnderTest
from rebinding.study.study import Study
from rebinding.verdicts.judgement import Judgement
from tests.tree.syntax_trees import trees

OF_THE_MODEL = ("truth", "plant", "spec", "session", "wide_session", "session_for", "loaded_model", "load_circuit")
"""Names of `ModelUnderTest` that lead to what was planted, or to the model itself."""
OF_A_BENCH = ("surgeon",)


def public(cls: type) -> set[str]:
    """The public attributes of a class."""
    names = {*dir(cls), *inspect.get_annotations(cls), *inspect.signature(cls).parameters}
    return {name for name in names if not name.startswith("_")}


HIDDEN = {*OF_THE_MODEL, *OF_A_BENCH, "expected"}


def test_hidden_names_exist() -> None:
    assert set(OF_THE_MODEL) <= public(ModelUnderTest)
    assert set(OF_A_BENCH) <= public(Workbench)
    assert "expected" in public(Judgement)


@pytest.mark.parametrize("name", [module for module in trees() if module.startswith("claims.")])
def test_no_claim_asks_for_what_was_planted(name: str) -> None:
    attributes = {node.attr for node in ast.walk(trees()[name]) if isinstance(node, ast.Attribute)}
    assert not attributes & HIDDEN
    assert not [attribute for attribute in attributes if attribute.startswith("_")]


def test_a_study_shows_nothing_that_is_hidden() -> None:
    assert not public(Study) & HIDDEN
    assert {"binding", "trace_residuals", "discoveries", "printed", "circuit"} <= public(Study)


def test_expectations_are_compared_in_one_place() -> None:
    """`Truth` is read where a judgement is made, by the model, and where it is said how many prompts
    and which rows a plant needs."""
    calls = [
        name
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr == "truth")
        or (isinstance(node, ast.Name) and node.id == "truth_of")
        if not name.startswith("rebinding.planted")
    ]
    assert set(calls) == {
        "fixtures.judging",
        "rebinding.study.model_under_test",
        "rebinding.study.model_spec",
    }
