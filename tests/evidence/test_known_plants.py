"""Planted models by what is on record of them: nothing is built until something is run; nothing is taken on trust."""

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
from rebinding.study import plants as remembered
from rebinding.study.plants import MODELS, declared, load_remembered
from rebinding.surgery import Read
from rebinding.task.designs import design

NAME = "planted:pointer@llama"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on whoever builds a plant fails."""

    def built(*_: Any, **__: Any) -> Any:
        raise AssertionError("a plant was built")

    monkeypatch.setattr(remembered, "load", built)
    monkeypatch.setattr(remembered, "build", built)


def logits(loaded_model: LoadedModel) -> torch.Tensor:
    """Of one prompt, at its end."""
    (prompt,) = loaded_model.encoder().encode([design("published").prompt(0)])
    surgeon = loaded_model.surgeon()
    (found,) = surgeon.run(surgeon.record(token_batch([prompt])), [], [Read("logits", positions=[len(prompt) - 1])])
    return found


def test_a_second_load_builds_nothing_and_says_the_same(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    first, plain = load_remembered(NAME, store, dtype="float32"), load(NAME)
    forbid(monkeypatch)
    second = load_remembered(NAME, store, dtype="float32")
    assert second.fingerprint == first.fingerprint == plain.fingerprint
    assert second.anatomy == plain.anatomy
    assert (second.form, second.dtype, second.device) == (plain.form, plain.dtype, plain.device)
    with pytest.raises(AssertionError, match="a plant was built"):
        logits(second)  # it has to be built for this, and was not before


def test_what_is_built_late_is_the_model(store: Store) -> None:
    load_remembered(NAME, store, dtype="float32")
    late = load_remembered(NAME, store, dtype="float32")
    assert torch.equal(logits(late), logits(load(NAME)))  # the same weights, shapes and calls


def test_other_weights_than_on_record_are_an_error(store: Store) -> None:
    load_remembered(NAME, store, dtype="float32")
    (entry,) = [one for one in store.entries() if one.experiment == MODELS]
    known = json.loads(remembered.Note.load(entry.path).text)
    store.put(MODELS, entry.key, remembered.Note(json.dumps(known | {"fingerprint": "0" * 64})))
    late = load_remembered(NAME, store, dtype="float32")
    with pytest.raises(ChangedModel, match="other weights"):
        logits(late)


def test_other_source_is_another_record(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    declared(parse(NAME), store)
    forbid(monkeypatch)
    monkeypatch.setattr(remembered, "code_hash", lambda *modules: "another")
    with pytest.raises(AssertionError, match="a plant was built"):
        declared(parse(NAME), store)


def test_what_a_plant_declares_is_kept_whole(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    what = replace(parse(NAME), boxes=5)
    plant = build(what)
    declared(what, store)
    forbid(monkeypatch)
    known = declared(what, store)
    assert (known.circuit, dict(known.printed), known.mechanism) == (plant.circuit, dict(plant.printed), "pointer")
    assert dict(known.truth) == dict(plant.truth)
    assert known.specification == what
