"""A folder's tokenizer decides the chat: its form and the text around a prompt; tokens without a row are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from rebinding.models import errors, load
from rebinding.models.checkpoint import open_tokenizer
from rebinding.models.loaded_model import check_tokens, form_for
from rebinding.models.names import origin
from rebinding.planted.tokenizer import build_tokenizer
from rebinding.task.designs import design
from rebinding.task.prompts import Encoder
from rebinding.task.words import OBJECTS
from tests.models.folders import change_config
from tests.surgery.models import tiny
from tests.task.chat_families import CHAT_FAMILIES, CHATML_SPECIAL
from tests.task.tokenizers import byte_pairs

CLASSES = {
    "gpt2, phi": ("gpt2", "GPT2Tokenizer"),
    "gpt_neox": ("gpt_neox", "GPTNeoXTokenizer"),
    "opt": ("opt", "GPT2Tokenizer"),
    "stablelm": ("stablelm", "GPTNeoXTokenizer"),
    "nemotron": ("nemotron", "PreTrainedTokenizerFast"),
    "gpt_oss": ("gpt_oss", "PreTrainedTokenizerFast"),
    "llama4": ("llama4_text", "PreTrainedTokenizerFast"),
    "gemma3n": ("gemma3n_text", "GemmaTokenizer"),
    "gemma4, large": ("gemma4_text", "GemmaTokenizer"),
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
