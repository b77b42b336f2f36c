"""Experiments hand edits and reads to a surgeon; the model itself is the surgeon's."""

from __future__ import annotations

import ast

import pytest

from tests.tree.syntax_trees import trees

EXPERIMENTS = [name for name in trees() if name.startswith("rebinding.experiments.")]
HOOKS = ("register_",)


def attributes(name: str) -> set[str]:
    return {node.attr for node in ast.walk(trees()[name]) if isinstance(node, ast.Attribute)}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_no_experiment_sets_a_hook(name: str) -> None:
    assert not [attribute for attribute in attributes(name) if attribute.startswith(HOOKS)]


def test_only_the_search_and_the_replays_read_the_model() -> None:
    """The search estimates by slopes and by weights, and what it reports is measured by edits; replays are compared
    with the model's own forward."""
    assert len(EXPERIMENTS) > 25
    reading = {name for name in EXPERIMENTS if "model" in attributes(name)}
    assert reading == {
        "rebinding.experiments.search.pairs",
        "rebinding.experiments.unedited",
    }
