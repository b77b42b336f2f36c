"""Planted models from their record in the store: a model is built when it first runs, and its weights are checked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rebinding.evidence.store import Store
from rebinding.experiments.tokens import token_batch
from rebinding.models import LoadedModel, load
from rebinding.models.errors import ChangedModel
from rebinding.planted import build, parse
from rebinding.study import plants
from rebinding.study.plants import MODELS, declared, load_remembered
from rebinding.surgery import Read
from rebinding.task.designs import design

NAME = "planted:pointer@llama"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every later build of a planted model fail."""

    def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError("a plant was built")

    monkeypatch.setattr(plants, "load", fail)
    monkeypatch.setattr(plants, "build", fail)


def logits(loaded_model: LoadedModel) -> torch.Tensor:
    """The logits of one prompt, at its end."""
    (prompt,) = loaded_model.encoder().encode([design("published").prompt(0)])
    surgeon = loaded_model.surgeon()
    (at_end,) = surgeon.run(surgeon.record(token_batch([prompt])), [], [Read("logits", at=[len(prompt) - 1])])
    return at_end


def test_a_second_load_builds_nothing_until_the_model_runs(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    first, plain = load_remembered(NAME, store, dtype="float32"), load(NAME)
    with monkeypatch.context() as patch:
        forbid(patch)
        second = load_remembered(NAME, store, dtype="float32")
        assert second.fingerprint == first.fingerprint == plain.fingerprint
        assert second.anatomy == plain.anatomy
        assert (second.form, second.dtype, second.device) == (plain.form, plain.dtype, plain.device)
        with pytest.raises(AssertionError, match="a plant was built"):
            logits(second)
    lazy = load_remembered(NAME, store, dtype="float32")
    assert torch.equal(logits(lazy), logits(plain))  # the same weights, shapes and calls


def test_weights_that_differ_from_the_record_are_an_error(store: Store) -> None:
    load_remembered(NAME, store, dtype="float32")
    (entry,) = [entry for entry in store.entries() if entry.experiment == MODELS]
    record = json.loads(plants.Note.load(entry.path).text)
    store.put(MODELS, entry.key, plants.Note(json.dumps(record | {"fingerprint": "0" * 64})))
    lazy = load_remembered(NAME, store, dtype="float32")
    with pytest.raises(ChangedModel, match="other weights"):
        logits(lazy)


def test_other_source_is_another_record(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    declared(parse(NAME), store)
    forbid(monkeypatch)
    monkeypatch.setattr(plants, "code_hash", lambda *modules: "another")
    with pytest.raises(AssertionError, match="a plant was built"):
        declared(parse(NAME), store)


def test_the_record_has_everything_that_a_plant_declares(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    specification = replace(parse(NAME), boxes=5)
    plant = build(specification)
    declared(specification, store)
    forbid(monkeypatch)
    record = declared(specification, store)
    assert (record.circuit, dict(record.printed), record.mechanism) == (plant.circuit, dict(plant.printed), "pointer")
    assert dict(record.truth) == dict(plant.truth)
    assert record.specification == specification
