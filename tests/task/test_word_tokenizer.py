"""The tokenizer that comes with the project: every word one token, blanks without effect, the same after saving."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from rebinding.planted.tokenizer import build_tokenizer
from rebinding.task.chat import form_of
from rebinding.task.designs import design
from rebinding.task.prompts import Encoder
from rebinding.task.words import LABELS, OBJECTS


@pytest.mark.parametrize("verb", ["swap", "move"])
def test_no_word_of_any_prompt_is_unknown(verb: str) -> None:
    tokenizer = build_tokenizer()
    for form in ("template", "raw"):
        stories = design(split="none", boxes=7, verb=verb, operations=2)  # type: ignore[arg-type]  # one of the verbs
        for encoded in Encoder(tokenizer, form).encode(map(stories.prompt, range(100))):
            assert tokenizer.unk_token_id not in encoded.ids


def test_every_label_and_object_is_one_token_with_and_without_a_blank() -> None:
    tokenizer = build_tokenizer()
    for word in (*LABELS, *OBJECTS):
        unspaced, spaced = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (word, f"  {word}"))
        assert unspaced == spaced == [tokenizer.convert_tokens_to_ids(word)]
        assert tokenizer.decode(unspaced) == word
    assert form_of(tokenizer) == "template"


def test_punctuation_and_line_breaks_are_tokens() -> None:
    pieces = build_tokenizer().tokenize("Box A.\n\nContext: egg, fan?\nAnswer:", add_special_tokens=False)
    assert pieces == ["Box", "A", ".", "\n\n", "Context", ":", "egg", ",", "fan", "?", "\n", "Answer", ":"]


def test_turns_are_single_tokens_and_the_prompt_stays_short() -> None:
    (encoded,) = Encoder(build_tokenizer()).encode([design().prompt(0)])
    assert [piece for piece in encoded.pieces if piece.startswith("<")] == [
        *("<bos>", "<system>", "<end>", "<user>", "<end>", "<assistant>")
    ]
    assert encoded.pieces[-3:] == ["<assistant>", "Answer", ":"]
    assert len(encoded) == 79


def test_tokenizer_is_reproducible_and_survives_saving(tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    second = AutoTokenizer.from_pretrained(tmp_path)
    assert second.get_vocab() == tokenizer.get_vocab() == build_tokenizer().get_vocab()
    assert second.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    prompts = [design().prompt(prompt_id) for prompt_id in range(5)]
    assert Encoder(second).encode(prompts) == Encoder(tokenizer).encode(prompts)
    for name in ("bos", "eos", "pad", "unk"):
        assert getattr(second, f"{name}_token_id") == getattr(tokenizer, f"{name}_token_id")
