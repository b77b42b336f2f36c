"""Models from folders: what comes back is what was saved, checked and ready, with the same fingerprint."""

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
from rebinding.models.loaded_model import fingerprint
from rebinding.planted.tokenizer import build_tokenizer
from rebinding.surgery import Edit, Read
from rebinding.task.boxes import Contains, Story, Swap
from rebinding.task.prompts import Prompt
from tests.close import agree, is_changed
from tests.everyday import sampled
from tests.models.folders import ROWS, change_config, save, save_tiny
from tests.surgery.models import FAMILIES, Family, tiny, tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_gives_the_model_that_was_saved(family: Family, tmp_path: Path) -> None:
    """With the anatomy of its text tower; a multimodal wrapper keeps its vision tower as it is."""
    loaded_model = load(str(save_tiny(tmp_path, family)), form="raw", device="cpu")
    ids, model = tokens(family), loaded_model.model
    with torch.no_grad():  # weights from a file lie elsewhere
        assert agree(model(ids).logits, tiny(family, vocab_size=ROWS)(ids).logits)
    assert (loaded_model.dtype, loaded_model.device, loaded_model.form) == ("float32", torch.device("cpu"), "raw")
    assert loaded_model.revision is None
    assert not model.training
    anatomy = loaded_model.anatomy
    assert (anatomy.n_layers, anatomy.n_heads, anatomy.parts[0].n_kv_heads, anatomy.parts[0].head_dim) == (4, 6, 2, 10)
    assert anatomy.branches is not None
    assert bool(anatomy.branches.mlp_after) == ("gemma" in family)
    is_wrapper = family == "gemma3_multimodal"
    assert anatomy.layers == ("model.language_model.layers" if is_wrapper else "model.layers")
    if is_wrapper:
        assert type(model).__name__ == "Gemma3ForConditionalGeneration"
        assert model.config.text_config._attn_implementation == "rebinding_eager"
        assert model.config.vision_config._attn_implementation == "eager"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_model_is_loaded_in_16_bits_but_for_its_positions(dtype: str, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("family", sampled(FAMILIES, "llama", "gemma3"))
def test_fingerprint_survives_saving_sharding_and_loading(family: Family, tmp_path: Path) -> None:
    first = load(str(save_tiny(tmp_path / "one", family)))
    second = load(str(save(first.model, tmp_path / "two", max_shard_size="20KB")))
    assert len(list((tmp_path / "two").glob("*.safetensors"))) > 1
    assert first.fingerprint == second.fingerprint == fingerprint(tiny(family, vocab_size=ROWS), build_tokenizer())


def test_a_single_weight_changes_the_fingerprint() -> None:
    model, tokenizer = tiny("llama"), build_tokenizer()
    before = fingerprint(model, tokenizer)
    for weight, place in ((model.model.layers[3].mlp.down_proj.weight, (-1, -1)), (model.lm_head.weight, (0, 0))):
        original = weight[place].clone()
        weight[place] = torch.nextafter(original, torch.tensor(9.0))
        assert fingerprint(model, tokenizer) != before
        weight[place] = original
    assert fingerprint(model, tokenizer) == before


def test_dtype_settings_and_tokenizer_change_the_fingerprint() -> None:
    """Using a tokenizer does not."""
    model, tokenizer = tiny("gemma2"), build_tokenizer()
    before = fingerprint(model, tokenizer)
    prints = {
        before,
        fingerprint(tiny("gemma2").bfloat16(), tokenizer),
        fingerprint(tiny("gemma2", final_logit_softcapping=3.5), tokenizer),
    }
    tokenizer(["Box A", "Box"], padding=True, truncation=True, max_length=2)
    tokenizer.padding_side = "left"
    assert fingerprint(model, tokenizer) == before
    tokenizer.chat_template += " "
    prints.add(fingerprint(model, tokenizer))
    tokenizer = build_tokenizer()
    tokenizer.add_tokens(["zeppelin"])
    prints.add(fingerprint(model, tokenizer))
    assert len(prints) == 5
