"""Subjects on a server: what is refused before anything is sent, and what is checked with the first request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nnsight
import pytest
import torch

from rebinding.models import ModelError, checkpoint, errors, load, remote
from rebinding.planted import build
from rebinding.surgery import Read
from rebinding.surgery.nnsight_surgeon import NNsightSurgeon

NAME = "someone/pointer"


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nnsight.CONFIG.API, "APIKEY", "a key")


@pytest.fixture
def served(key: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands in for the Hub; requests are packed as for a server, and run here."""
    plant = build("pointer")
    plant.model.save_pretrained(tmp_path)
    plant.tokenizer.save_pretrained(tmp_path)

    def connect(model_origin: Any) -> tuple[Any, str]:
        options = {"task": "text-generation", "attn_implementation": remote.EAGER, "dispatch": True}
        return nnsight.TransformersModel(str(tmp_path), **options), "local"

    monkeypatch.setattr(checkpoint, "fetch", lambda repository, revision: tmp_path)
    monkeypatch.setattr(remote, "connect", connect)
    return tmp_path


def test_nothing_is_requested_without_a_hub_id_a_key_and_the_hub(key: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("planted:pointer", "shape:gemma2-9b", "."):
        with pytest.raises(errors.UnreachableModel, match="Hub id"):
            remote.load_remote(name)

    def offline(*_: Any) -> Path:
        raise errors.UnreachableModel("the Hub cannot be reached")

    monkeypatch.setattr(checkpoint, "fetch", offline)
    with pytest.raises(ModelError, match="cannot be reached"):
        remote.load_remote("gemma2-9b")
    monkeypatch.setattr(nnsight.CONFIG.API, "APIKEY", None)
    with pytest.raises(errors.UnreachableModel, match="NDIF_API_KEY"):
        remote.load_remote("gemma2-9b")


def test_a_served_subject_answers_as_the_same_model_here(served: Path) -> None:
    remote_model, local_model = remote.load_remote(NAME), load(str(served))
    assert remote_model.anatomy == local_model.anatomy
    assert remote_model.form == local_model.form
    assert (remote_model.dtype, remote_model.device.type) == ("as served", "meta")
    surgeon = remote_model.surgeon()
    assert isinstance(surgeon, NNsightSurgeon)
    tokens, read = torch.arange(40).reshape(2, 20) + 7, [Read("logits", at=[19])]
    answers = [surgeon.run(surgeon.record(tokens), [], read)[0] for surgeon in (surgeon, local_model.surgeon())]
    assert torch.allclose(*answers, atol=400 * torch.finfo(torch.float32).eps * float(answers[0].abs().max()))


def test_fingerprint_is_made_of_name_and_description(served: Path) -> None:
    """Weights are not seen: another name is another model, and never equal to the one loaded here."""
    first, second, other_name = (remote.load_remote(name).fingerprint for name in (NAME, NAME, "someone/else"))
    assert first == second
    assert len({first, other_name, load(str(served)).fingerprint}) == 3


def test_a_site_that_moves_nothing_on_the_server_is_noticed(served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = remote.connect

    def with_dead_heads(model_origin: Any) -> Any:
        client, carrier = connect(model_origin)
        for layer in client._module.model.layers:
            layer.self_attn.o_proj.weight.data.zero_()
        return client, carrier

    monkeypatch.setattr(remote, "connect", with_dead_heads)
    with pytest.raises(
        errors.FailedSelfCheck, match="edits of q, k, v, q_rot, k_rot, v_seen, scores, pattern, z at a middle layer"
    ):
        remote.load_remote(NAME)
