"""Damaged files of a store: what is read stays equal, every damage is reported once, nothing is lost."""

from __future__ import annotations

import resource
import shutil
import warnings
from pathlib import Path
from random import Random

import pytest
import torch

from rebinding.evidence.store import Activations, Note, Store, StoreWarning
from tests.oracles.faults.damages import DAMAGES
from tests.oracles.faults.stores import blocks, content, ordinary_user

MEMORY = 1 << 30
"""Bytes by which the process may have grown at its peak: a hundredth of what the larger bomb unfolds to."""
TRIES = 8
"""Of each sort of damage, everything else drawn."""


def run(root: Path) -> list[object]:
    """Numbers from every kind of shard."""
    evidence, store = blocks(root, 4), Store(root)
    note = store.remember(Note, "toy", "note", lambda: Note("made once"))
    activations = store.remember(Activations, "toy", "tensors", lambda: Activations({"root": torch.arange(9.0).sqrt()}))
    return [evidence.rows.to_dict("list"), evidence.settings, note, activations.tensors["root"].tolist()]


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[object]]:
    """A store that nothing happened to, and what was found when it was made."""
    folder = tmp_path_factory.mktemp("corruption")
    return folder, run(folder / "whole")


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize("fault", DAMAGES)
def test_damage_is_reported_once_and_changes_nothing_that_is_read(
    fault: str, baseline: tuple[Path, list[object]]
) -> None:
    folder, expected = baseline
    root, before = folder / "damaged", peak()
    for number in range(TRIES):
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(folder / "whole", root)
        hit = DAMAGES[fault](Random(f"{fault} {number}"), root)
        outside_content = content(folder / "outside")
        with ordinary_user(), warnings.catch_warnings(record=True) as excinfo:
            warnings.simplefilter("always")
            result = run(root)
        messages = [str(warning.message) for warning in excinfo if warning.category is StoreWarning]
        assert result == expected
        assert len(messages) == len(hit)
        assert all(any(str(path) in message for message in messages) for path in hit)
        assert content(root) == content(folder / "whole"), "the store is not as it was"
        assert content(folder / "outside") == outside_content, "something outside was changed"
        assert "folder" not in fault or list(root.rglob("thesis.txt")), "a folder was thrown away"
    assert peak() - before <= MEMORY
