"""Costs of any model: its shape and the length of its prompts are found without its weights."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rebinding.cost.hollow_model import STAND_IN, model_facts, published, stretched
from rebinding.experiments.prompts import Stories
from rebinding.models import load
from rebinding.paper.circuit import Circuit
from rebinding.paper.numbers import circuit
from tests.models.folders import save_tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small model as somebody might have it."""
    return save_tiny(tmp_path / "tiny")


def test_facts_about_a_folder_without_weights(folder: Path) -> None:
    model = load(str(folder))
    encoder = model.encoder()
    length = len(encoder.encode([Stories(encoder).design("published").prompt(0)])[0])
    (folder / "model.safetensors").unlink()
    facts = model_facts(str(folder))
    assert (facts.config.num_hidden_layers, facts.config.hidden_size) == (model.anatomy.n_layers, model.anatomy.hidden)
    assert (facts.tokens, facts.dtype, facts.circuit_of) == (length, "float32", STAND_IN)
    facts.heads.check(model.anatomy.n_layers, model.anatomy.n_heads)


@pytest.mark.parametrize(("layers", "width"), [(30, 9), (48, 16), (6, 6)])
def test_a_stretched_circuit_has_every_group_and_leaves_half_of_a_layer(layers: int, width: int) -> None:
    heads = stretched(published(STAND_IN), range(layers), width).check(layers, width)
    assert heads.groups.keys() == published(STAND_IN).groups.keys()
    cost = Counter(layer for layer, _ in {(head.layer, head.head) for head in heads.heads})
    assert max(cost.values()) <= width // 2
    depth = {name: [head.layer / layers for head in group] for name, group in heads.groups.items()}
    assert min(depth["A"]) > max(depth["D"])


def test_facts_about_the_papers_models() -> None:
    facts = model_facts("gemma2-9b", tokens=90)
    assert (facts.tokens, facts.dtype, facts.circuit_of) == (90, "bfloat16", None)
    assert facts.heads == Circuit(circuit("gemma2-9b"))
    assert model_facts("shape:gemma2-9b").tokens == 83


def test_a_plant_has_no_costs() -> None:
    with pytest.raises(ValueError, match="judged in minutes"):
        model_facts("planted:pointer@llama")
