"""Subjects from folders: what comes back is what was saved, checked and ready."""

from __future__ import annotations

import io
import logging
import sys
from pathlib import Path

import pytest
import torch
from transformers.utils import logging as transformers_logging

from rebinding.experiments.tokens import token_batch
from rebinding.models import load
from rebinding.surgery import Edit, Read
from rebinding.task.boxes import Contains, Story, Swap
from rebinding.task.prompts import Prompt
from tests.close import agree, is_changed
from tests.models.folders import ROWS, change_config, save_tiny
from tests.surgery.models import FAMILIES, Family, tiny, tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_gives_the_model_that_was_saved(family: Family, tmp_path: Path) -> None:
    loaded_model = load(str(save_tiny(tmp_path, family)), form="raw", device="cpu")
    ids = tokens(family)
    with torch.no_grad():
        assert agree(
            loaded_model.model(ids).logits, tiny(family, vocab_size=ROWS)(ids).logits
        )  # weights from a file lie elsewhere
    assert (loaded_model.dtype, loaded_model.device, loaded_model.form) == ("float32", torch.device("cpu"), "raw")
    assert loaded_model.revision is None
    assert not loaded_model.model.training


@pytest.mark.parametrize("family", FAMILIES)
def test_the_anatomy_is_that_of_the_text_tower(family: Family, tmp_path: Path) -> None:
    anatomy = load(str(save_tiny(tmp_path, family))).anatomy
    assert (anatomy.n_layers, anatomy.n_heads, anatomy.parts[0].n_kv_heads, anatomy.parts[0].head_dim) == (4, 6, 2, 10)
    assert anatomy.branches is not None
    assert bool(anatomy.branches.mlp_after) == ("gemma" in family)
    prefix = "model.language_model" if family == "gemma3_multimodal" else "model"
    assert anatomy.layers == f"{prefix}.layers"


def test_the_multimodal_wrapper_keeps_its_vision_tower_as_it_is(tmp_path: Path) -> None:
    model = load(str(save_tiny(tmp_path, "gemma3_multimodal"))).model
    assert type(model).__name__ == "Gemma3ForConditionalGeneration"
    assert model.config.text_config._attn_implementation == "rebinding_eager"
    assert model.config.vision_config._attn_implementation == "eager"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits(dtype: str, tmp_path: Path) -> None:
    loaded_model = load(str(save_tiny(tmp_path, "gemma2")), dtype=dtype)
    assert {weight.dtype for weight in loaded_model.model.parameters()} == {getattr(torch, dtype)}
    assert loaded_model.dtype == dtype
    frequencies = dict(loaded_model.model.named_buffers())["model.rotary_emb.inv_freq"]
    assert frequencies.dtype == torch.float32


@pytest.mark.parametrize("device", ["cpu", {"": "cpu"}, {"model": "cpu", "lm_head": "cpu"}])
def test_accelerate_places_the_model(device: str | dict[str, str], tmp_path: Path) -> None:
    loaded_model = load(str(save_tiny(tmp_path)), device=device)
    assert {weight.device.type for weight in loaded_model.model.parameters()} == {"cpu"}


def test_the_surgeon_and_the_encoder_work(tmp_path: Path) -> None:
    """An edit that swaps a residual for that of another prompt gives that prompt's logits from there on."""
    loaded_model = load(str(save_tiny(tmp_path)), device="cpu")
    stories = [Story((Contains("A", item), Contains("B", "fan")), (Swap("A", "B"),)) for item in ("egg", "tea")]
    ids = token_batch(loaded_model.encoder().encode([Prompt(story, "A") for story in stories]))
    surgeon, last = loaded_model.surgeon(), ids.shape[1] - 1
    recording = surgeon.record(ids)
    edit = Edit("resid", recording.sites["resid"][4][1:, last:], at=[last], layer=4, rows=[0])
    (logits,) = surgeon.run(recording, [edit], [Read("logits", at=[last])])
    with torch.no_grad():
        expected = loaded_model.model(ids).logits[:, last]
    assert agree(logits[0, 0], expected[1])
    assert is_changed(expected[0], expected[1])


def test_an_alias_gives_a_folder_its_chat_form(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path)
    assert load(f"llama3.2-3b={folder}").form == "llama3"
    assert load(str(folder)).form == "template"
    assert load(f"llama3.2-3b={folder}", form="raw").form == "raw"


@pytest.mark.parametrize("terminal", [True, False])
def test_loading_is_quiet_where_nobody_watches(terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar on a terminal only, no warnings of transformers; afterwards both are as they were."""
    folder = save_tiny(tmp_path)
    change_config(folder, "generation_config.json", do_sample=False, temperature=0.5)
    handler, screen = logging.StreamHandler(io.StringIO()), io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    transformers_logging.warning_once.cache_clear()
    library = logging.getLogger("transformers")
    library.addHandler(handler)
    before = transformers_logging.get_verbosity()
    try:
        load(str(folder), form="raw")
    finally:
        library.removeHandler(handler)
    assert ("Loading weights" in screen.getvalue()) == terminal
    assert handler.stream.getvalue() == ""
    assert transformers_logging.get_verbosity() == before
    assert transformers_logging.set_tqdm_hook(None) is None
