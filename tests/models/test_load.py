"""Models from folders, or of a shape: what was saved comes back, checked and ready, with the chat of its tokenizer."""

from __future__ import annotations

import io
import json
import logging
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers.utils import logging as transformers_logging

from rebinding.experiments.tokens import token_batch
from rebinding.models import ALIASES, build_shape, check, errors, load, shape_config
from rebinding.models.checkpoint import open_tokenizer
from rebinding.models.loaded_model import check_tokens, fingerprint, form_for
from rebinding.models.names import origin
from rebinding.models.shapes import skeleton
from rebinding.planted.tokenizer import build_tokenizer
from rebinding.surgery import Anatomy, Edit, Read, derive
from rebinding.task.boxes import Contains, Story, Swap
from rebinding.task.designs import design
from rebinding.task.prompts import Encoder, Prompt
from rebinding.task.words import OBJECTS
from tests.close import agree, is_changed
from tests.families.models import Family, tiny, tokens
from tests.models.folders import ROWS, change_config, save, save_tiny
from tests.task.chat_families import CHAT_FAMILIES, CHATML_SPECIAL
from tests.task.tokenizers import byte_pairs


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3_multimodal"])
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


@pytest.mark.parametrize("device", [{"": "cpu"}, {"model": "cpu", "lm_head": "cpu"}])
def test_accelerate_places_the_model(device: dict[str, str], tmp_path: Path) -> None:
    loaded_model = load(str(save_tiny(tmp_path, num_hidden_layers=2)), device=device)
    assert {weight.device.type for weight in loaded_model.model.parameters()} == {"cpu"}


def test_the_surgeon_and_the_encoder_work(tmp_path: Path) -> None:
    """An edit that swaps a residual for that of another prompt gives that prompt's logits from there on."""
    loaded_model = load(str(save_tiny(tmp_path, num_hidden_layers=2)), device="cpu")
    stories = [Story((Contains("A", item), Contains("B", "fan")), (Swap("A", "B"),)) for item in ("egg", "tea")]
    ids = token_batch(loaded_model.encoder().encode([Prompt(story, "A") for story in stories]))
    surgeon, last = loaded_model.surgeon(), ids.shape[1] - 1
    recording = surgeon.record(ids)
    edit = Edit("resid", recording.sites["resid"][2][1:, last:], at=[last], layer=2, rows=[0])
    (logits,) = surgeon.run(recording, [edit], [Read("logits", at=[last])])
    with torch.no_grad():
        expected = loaded_model.model(ids).logits[:, last]
    assert agree(logits[0, 0], expected[1])
    assert is_changed(expected[0], expected[1])


def test_an_alias_gives_a_folder_its_chat_form(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path, num_hidden_layers=2)
    assert load(f"llama3.2-3b={folder}").form == "llama3"
    plain = load(str(folder))
    assert plain.encoder().form == plain.form == "template"
    assert load(f"llama3.2-3b={folder}", form="raw").form == "raw"


@pytest.mark.parametrize("terminal", [True, False])
def test_loading_is_quiet_where_nobody_watches(terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar on a terminal only, no warnings of transformers; afterwards both are as they were."""
    folder = save_tiny(tmp_path, num_hidden_layers=2)
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


@pytest.mark.parametrize("family", ["llama", "gemma3"])
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


# The chat form

CLASSES = {
    "gpt2, phi": ("gpt2", "GPT2Tokenizer"),
    "opt": ("opt", "GPT2Tokenizer"),
    "stablelm": ("stablelm", "GPTNeoXTokenizer"),
    "nemotron": ("nemotron", "PreTrainedTokenizerFast"),
    "gpt_oss": ("gpt_oss", "PreTrainedTokenizerFast"),
    "llama4": ("llama4_text", "PreTrainedTokenizerFast"),
    "gemma3n": ("gemma3n_text", "GemmaTokenizer"),
    "gemma4": ("gemma4_text", "GemmaTokenizer"),
    "qwen3_next": ("qwen3_next", "Qwen2Tokenizer"),
    "qwen3_5": ("qwen3_5_text", "Qwen2Tokenizer"),
}
"""The type of the model and the class of the tokenizer that a published folder names. Some of these classes build their
parts anew when they are opened."""


@pytest.mark.parametrize("name", CLASSES)
def test_a_published_folder_gives_the_familys_prompts(name: str, tmp_path: Path) -> None:
    family, (model_type, tokenizer_class) = CHAT_FAMILIES[name], CLASSES[name]
    made = family.make()
    made.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    change_config(tmp_path, "tokenizer_config.json", tokenizer_class=tokenizer_class)
    encoder = Encoder(open_tokenizer(tmp_path))
    (encoded,), (expected,) = (each.encode([design().prompt(0)]) for each in (encoder, Encoder(made)))
    assert encoder.form == family.form
    assert encoded == expected
    assert (encoded.text.startswith(family.prefix), encoded.text.endswith(family.suffix)) == (True, True)
    assert encoder.answer_tokens(OBJECTS) == Encoder(made).answer_tokens(OBJECTS)


def test_a_base_model_is_loaded_for_raw_prompts(tmp_path: Path) -> None:
    tokenizer = CHAT_FAMILIES["opt"].make()
    tokenizer.save_pretrained(tmp_path)
    tiny("llama", vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    loaded_model = load(str(tmp_path), device="cpu")
    assert loaded_model.form == "raw"
    (encoded,) = loaded_model.encoder().encode([design().prompt(0)])
    assert encoded.text.startswith("</s>Answer the question")


def test_a_lost_template_is_the_models_error(tmp_path: Path) -> None:
    with pytest.raises(errors.UnfitTokenizer, match=r"my-model: .*tokens of a chat \(<\|im_start\|>\).*form='raw'"):
        form_for("my-model", origin(str(tmp_path)), byte_pairs(CHATML_SPECIAL))


def test_the_largest_token_counts_where_ids_leave_gaps() -> None:
    tokenizer = build_tokenizer()
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    state["model"]["vocab"][OBJECTS[-1]] += 10
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(state))
    rows = len(tokenizer)
    with pytest.raises(errors.UnfitTokenizer, match=f"'{OBJECTS[-1]}' with token {rows + 9}.*a row for each token"):
        check_tokens("model", tokenizer, "template", rows)
    check_tokens("model", tokenizer, "template", rows + 10)


# Shapes: sizes of the paper's models, and weights that cost nothing to draw

TABLE = {
    # layers, heads, KV heads, head_dim (the paper's table); parameters (of Gemma-3-12B without its vision tower)
    "gemma2-9b": (42, 16, 8, 256, 9_241_705_984),
    "gemma3-12b": (48, 16, 8, 256, 11_766_034_176),
    "llama3.2-3b": (28, 24, 8, 128, 3_212_749_824),
    "llama3.1-8b": (32, 32, 8, 128, 8_030_261_248),
}
SMALL = {"num_hidden_layers": 2, "vocab_size": 300, "intermediate_size": 64, "hidden_size": 96}


@pytest.mark.parametrize("alias", ALIASES)
def test_the_exact_shape(alias: str) -> None:
    model = skeleton(shape_config(alias), torch.bfloat16, torch.device("meta"))
    anatomy = derive(model)
    count = sum(weight.numel() for weight in model.parameters())
    assert (anatomy.n_layers, anatomy.n_heads, anatomy.parts[0].n_kv_heads, anatomy.parts[0].head_dim, count) == TABLE[
        alias
    ]
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}


def test_gemma_shapes_keep_their_special_features() -> None:
    meta = torch.device("meta")
    gemma2 = derive(skeleton(shape_config("gemma2-9b"), torch.float32, meta))
    gemma3 = derive(skeleton(shape_config("gemma3-12b"), torch.float32, meta))
    assert (gemma2.score_softcap, gemma2.logit_softcap, _windows(gemma2)) == (50.0, 30.0, [4096, None] * 21)
    assert (gemma3.score_softcap, gemma3.logit_softcap, _windows(gemma3)) == (None, None, [*[1024] * 5, None] * 8)
    assert (gemma2.parts[0].q_norm, gemma3.parts[0].q_norm) == ("", "q_norm")


@pytest.mark.parametrize(("alias", "dtype"), list(zip(ALIASES, [torch.float32, torch.bfloat16] * 2, strict=True)))
def test_a_cut_down_shape_passes_the_self_check(alias: str, dtype: torch.dtype) -> None:
    model = build_shape(alias, dtype=dtype, device=torch.device("cpu"), **_small(alias))
    anatomy = check(model)
    assert (anatomy.n_layers, anatomy.parts[0].head_dim) == (2, TABLE[alias][3])
    assert model.get_input_embeddings().weight.dtype == dtype


def _small(alias: str) -> dict[str, object]:
    return SMALL | ({"layer_types": ["sliding_attention", "full_attention"]} if "gemma" in alias else {})


def test_weights_are_random_and_rows_differ() -> None:
    model = build_shape("llama3.1-8b", dtype=torch.float32, device=torch.device("cpu"), **SMALL)
    table = model.get_input_embeddings().weight
    assert float(table.std()) == pytest.approx(0.02, rel=0.05)  # 28,800 draws: relative error of the spread 0.4 %
    assert table.unique(dim=0).shape[0] == 300
    rebuilt = build_shape("llama3.1-8b", dtype=torch.float32, device=torch.device("cpu"), **SMALL)
    reseeded = build_shape("llama3.1-8b", dtype=torch.float32, device=torch.device("cpu"), seed=1, **SMALL)
    assert torch.equal(table, rebuilt.get_input_embeddings().weight)
    assert not torch.equal(table, reseeded.get_input_embeddings().weight)
    assert bool((model.model.norm.weight == 1).all())
    assert not torch.equal(model.lm_head.weight, table)
    first, second = (layer.self_attn.q_proj.weight for layer in model.model.layers)
    assert not torch.equal(first, second)


def _windows(anatomy: Anatomy) -> list[int | None]:
    return [parts.mask.size for parts in anatomy.parts]
