"""Costs of any model: its shape and the length of its prompts are found without its weights."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rebinding.cost.known import STAND_IN, known, published, stretched
from rebinding.experiments.prompts import Prompts
from rebinding.models import load
from rebinding.paper.circuit import Circuit
from rebinding.paper.numbers import circuit
from tests.models.folders import save_tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small model as somebody might have it."""
    return save_tiny(tmp_path / "tiny")


def test_a_folder_is_known_without_its_weights(folder: Path) -> None:
    there = load(str(folder))
    encoder = there.encoder()
    length = len(encoder.encode([Prompts(encoder).design("published").prompt(0)])[0])
    (folder / "model.safetensors").unlink()
    found = known(str(folder))
    assert (found.config.num_hidden_layers, found.config.hidden_size) == (there.anatomy.n_layers, there.anatomy.hidden)
    assert (found.tokens, found.dtype, found.whose) == (length, "float32", STAND_IN)
    found.heads.check(there.anatomy.n_layers, there.anatomy.n_heads)


@pytest.mark.parametrize(("layers", "width"), [(30, 9), (48, 16), (6, 6)])
def test_a_stretched_circuit_has_every_group_and_leaves_half_of_a_layer(layers: int, width: int) -> None:
    heads = stretched(published(STAND_IN), layers, width).check(layers, width)
    assert heads.groups.keys() == published(STAND_IN).groups.keys()
    used = Counter(layer for layer, _ in {(one.layer, one.head) for one in heads.heads})
    assert max(used.values()) <= width // 2
    depth = {name: [one.layer / layers for one in group] for name, group in heads.groups.items()}
    assert min(depth["A"]) > max(depth["D"])


def test_the_papers_models_are_known_by_their_names() -> None:
    found = known("gemma2-9b", tokens=90)
    assert (found.tokens, found.dtype, found.whose) == (90, "bfloat16", None)
    assert found.heads == Circuit(circuit("gemma2-9b"))
    assert known("shape:gemma2-9b").tokens == 83


def test_a_plant_has_no_costs() -> None:
    with pytest.raises(ValueError, match="judged in minutes"):
        known("planted:pointer@llama")
