"""A circuit file names its model and its order; what does not fit is refused, each with its own message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rebinding.models import load as load_subject
from rebinding.models.loaded_model import owner_of
from rebinding.paper.circuit import Circuit, CircuitError, CircuitHead, Owner, load, save
from rebinding.paper.numbers import checkpoint
from rebinding.paper.numbers import circuit as published
from tests.models.folders import save_tiny

OWNER = Owner("planted:pointer", "a" * 64, 12, 8)
CIRCUIT = Circuit((CircuitHead("A", 11, 2, "readout"), CircuitHead("C", 9, 7, "question_box")), {"noise": "fresh"})


def test_a_circuit_file_gives_back_heads_roles_and_settings(tmp_path: Path) -> None:
    """Pairs of a head and a token, and distinct heads, are counted apart."""
    path = tmp_path / "circuit.json"
    circuit = Circuit((*CIRCUIT.heads, CircuitHead("D", 9, 7, "swap_partner")), CIRCUIT.settings)
    save(circuit, OWNER, path)
    loaded = load(path, OWNER)
    assert (loaded, loaded.settings) == (circuit, circuit.settings)
    assert (loaded.pairs, loaded.unique) == (3, 2)
    assert "C  at question_box" in "\n".join(loaded.lines())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"order": ["head", "layer"]}, "swap the numbers of each pair"),
        ({"schema": 9}, "schema 9"),
        ({"model": {"name": "other", "fingerprint": "b" * 64}}, "belongs to other"),
        ({"groups": {"A": {"role": "readout", "heads": [[12, 2]]}}}, "do not exist"),
        ({"groups": {"A": {"role": "readout", "heads": [[2, 11], [7, 9]]}}}, "head first"),
        ({"groups": 3}, "not a circuit file"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    """Another order, schema, model, or heads that the model does not have."""
    path = tmp_path / "circuit.json"
    save(CIRCUIT, OWNER, path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CircuitError, match=message):
        load(path, OWNER)


def test_a_head_is_listed_once_in_a_group() -> None:
    """It may act at two tokens, and in two groups."""
    head = CIRCUIT.heads[0]
    with pytest.raises(CircuitError, match="lists a head twice in one group"):
        Circuit((head, CIRCUIT.heads[1], head))
    assert len(Circuit((head, head._replace(role="question_box"), head._replace(group="B"))).heads) == 3


def test_weights_in_another_precision_are_another_model(tmp_path: Path) -> None:
    """The same folder, rounded to bfloat16: a circuit that was found on it in float32 is refused."""
    folder = save_tiny(tmp_path / "model")
    original, rounded = (load_subject(str(folder), device="cpu", dtype=dtype) for dtype in ("float32", "bfloat16"))
    circuit = Circuit((CircuitHead("A", 1, 2, "readout"),))
    save(circuit, owner_of(original), tmp_path / "circuit.json")
    assert load(tmp_path / "circuit.json", owner_of(original)) == circuit
    with pytest.raises(CircuitError, match=r"found on other weights .* in another dtype"):
        load(tmp_path / "circuit.json", owner_of(rounded))


@pytest.mark.parametrize(
    ("alias", "counts"),
    [("gemma2-9b", (38, 37)), ("gemma3-12b", (83, 80)), ("llama3.2-3b", (42, 42)), ("llama3.1-8b", (40, 38))],
)
def test_the_papers_circuits_have_its_counts_and_fit_its_models(alias: str, counts: tuple[int, int]) -> None:
    """The paper's counts are head-position pairs; its lists fit the models only as (layer, head)."""
    shape, circuit = checkpoint(alias), Circuit(published(alias))
    assert (circuit.pairs, circuit.unique) == counts
    circuit.check(shape.layers, shape.heads)
