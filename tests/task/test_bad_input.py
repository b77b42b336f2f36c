"""Bad input to the encoder: each kind has its own message that says what to do."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rebinding.planted.tokenizer import build_tokenizer
from rebinding.task.boxes import Contains, Story
from rebinding.task.designs import design
from rebinding.task.prompts import Encoder, Prompt, PromptError
from rebinding.task.words import OBJECTS, DesignError

from .tokenizers import byte_level, sentence_pieces


def make_prompt(*pairs: tuple[str, str]) -> Prompt:
    return Prompt(Story(tuple(Contains(*pair) for pair in pairs)), pairs[0][0])


BAD_WORDS: dict[str, tuple[Any, Prompt, str]] = {
    "object of two tokens": (
        byte_level(),
        make_prompt(("A", "egg"), ("B", "shellfish")),
        r"'shellfish' \(context_object\[1\]\) is 2 tokens: 'Ġshell', 'fish'; every role has to be one token",
    ),
    "label of several tokens": (
        sentence_pieces(),
        make_prompt(("AB", "egg"), ("B", "fan")),
        r"'AB' \(context_box\[0\]\) is \d tokens",
    ),
    "a character that falls back to bytes": (
        sentence_pieces(),
        make_prompt(("Ä", "egg"), ("B", "fan")),
        r"'Ä' \(context_box\[0\]\) is \d tokens: .*<0xC3>",
    ),
    "a word that is not known": (
        build_tokenizer(),
        make_prompt(("A", "egg"), ("B", "hammock")),
        r"does not know 'hammock' \(context_object\[1\]\)",
    ),
}


@pytest.mark.parametrize(("tokenizer", "prompt", "message"), BAD_WORDS.values(), ids=BAD_WORDS)
def test_words_that_are_not_one_known_token_are_refused(tokenizer: Any, prompt: Prompt, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        Encoder(tokenizer).encode([prompt])


def test_a_label_that_merges_with_its_neighbours_is_refused() -> None:
    tokenizer = build_tokenizer()
    tokenizer.add_tokens(["Box A"])
    with pytest.raises(PromptError, match=r"'A' \(context_box\[0\]\) shares its token 'Box A' with its neighbours"):
        Encoder(tokenizer).encode([make_prompt(("A", "egg"), ("B", "fan"))])


def test_a_dropped_word_is_refused() -> None:
    tokenizer = build_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"Z"), behavior="removed"),
            tokenizer.backend_tokenizer.pre_tokenizer,
        ]
    )
    with pytest.raises(PromptError, match=r"the tokenizer drops 'Z' \(context_box\[0\]\)"):
        Encoder(tokenizer).encode([make_prompt(("Z", "egg"), ("B", "fan"))])


def test_a_tokenizer_that_cuts_every_word_leaves_no_object() -> None:
    letters = {letter: number for number, letter in enumerate(sorted(set("".join(OBJECTS)) | {" "}))}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(letters, [])))
    with pytest.raises(DesignError, match=r"3 different objects and .* has 0;.* a tokenizer that cuts fewer words"):
        design(tokenizer=tokenizer).prompt(0)


def test_a_slow_tokenizer_is_refused() -> None:
    from transformers import ByT5Tokenizer

    with pytest.raises(PromptError, match=r"ByT5Tokenizer gives no character offsets.*load the fast tokenizer"):
        Encoder(ByT5Tokenizer(), "raw")


def test_tokens_behind_the_readout_are_refused() -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = "<bos>{% for message in messages %}{{ message['content'] }}{% endfor %}"
    encoder = Encoder(tokenizer)
    encoder.tokenizer = Closing(tokenizer)
    with pytest.raises(PromptError, match=r"it must be the last one. The tokenizer puts 1 more behind the final ':'"):
        encoder.encode([make_prompt(("A", "egg"), ("B", "fan"))])


class Closing:
    """A tokenizer that appends a token even when it is told to add no special ones."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def __call__(self, texts: list[str], **options: Any) -> Any:
        return self.tokenizer([f"{text}?" for text in texts], **options)
