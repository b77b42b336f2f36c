"""Each mutant is caught by the cells of the truth table that should catch it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rebinding.planted import parse
from rebinding.planted.truth import truth_of
from tests.oracles.mutants.mutants import MUTANTS, Mutant
from tests.oracles.mutants.tree_copy import ROOT, apply, copy_tree, run

CRASHES = ("AttributeError", "ImportError", "NameError", "TypeError")
"""Errors of a mutant whose code does not fit the code around it: such a mutant fails every cell and tests nothing."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_one_place(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text().count(mutant.right) == 1
    assert mutant.right != mutant.wrong
    for claim, model in mutant.cells:
        spec = parse(model)
        assert claim in truth_of(spec.mechanism, spec.variant)


@pytest.mark.slow
def test_unmutated_cells_are_as_planted(tmp_path: Path) -> None:
    cells = list(dict.fromkeys(cell for mutant in MUTANTS for cell in mutant.cells))
    judged = {(claim, model) for claim, model in cells if claim in _rows(model)}
    result = run(copy_tree(tmp_path), sorted(judged))
    assert set(result.values()) == {None}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught(mutant: Mutant, tmp_path: Path) -> None:
    tree = copy_tree(tmp_path)
    apply(mutant, tree)
    result = run(tree, mutant.cells, mutant.before)
    assert all(result.values()), f"not noticed by {[cell for cell, wrong in result.items() if wrong is None]}"
    assert not [wrong for wrong in result.values() if str(wrong).startswith(CRASHES)]


def _rows(model: str) -> set[str]:
    spec = parse(model)
    return set(truth_of(spec.mechanism, spec.variant))
