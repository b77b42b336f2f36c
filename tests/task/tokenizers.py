"""Four kinds of tokenizer, made on the spot, that cut the prompts as the real ones do.

* `word_level`: the tokenizer of the planted models;
* `byte_level`: bytes, Llama 3's rule for cutting text into words, its turn tokens and its template with dates;
* `sentence_pieces`: blanks turned into a visible sign, bytes for unknown characters, Gemma's turn tokens, and a
  template that refuses a system turn;
* `unigram`: SentencePiece's other model, which puts a visible sign before the first word too.

The two trained ones merge every word that their corpus contains into one token, as large vocabularies do for these
words; any other word falls apart.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from rebinding.planted.tokenizer import build_tokenizer
from rebinding.task.boxes import Contains, Move, Put, Remove, Story, Swap
from rebinding.task.chat import SYSTEM
from rebinding.task.prompts import Prompt
from rebinding.task.text import render_raw
from rebinding.task.words import LABELS, OBJECTS

LLAMA_SPECIAL = ("<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|pad|>")
LLAMA_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
LLAMA_TEMPLATE = (
    "{{ bos_token }}"
    "{% set date = date_string if date_string is defined else strftime_now('%d %b %Y') %}"
    "{% if messages[0]['role'] == 'system' %}"
    "{% set said = messages[0]['content'] | trim %}{% set messages = messages[1:] %}"
    "{% else %}{% set said = '' %}{% endif %}"
    "{{ '<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: ' }}"
    "{{ date + '\n\n' + said + '<|eot_id|>' }}"
    "{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
DATELESS_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
GEMMA_SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")
GEMMA_TEMPLATE = (
    "{{ bos_token }}"
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}"
    "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)


@cache
def word_level() -> Any:
    return build_tokenizer()


@cache
def byte_level(pad: str = "<|pad|>", template: str = LLAMA_TEMPLATE) -> Any:
    """Byte-level BPE in the manner of Llama 3; `pad` may be `<|eot_id|>`, the usual fallback where there is none."""
    fast = byte_pairs(LLAMA_SPECIAL, words=LLAMA_WORDS, first="<|begin_of_text|>", template=template)
    fast.eos_token, fast.pad_token = "<|eot_id|>", pad
    return fast


def byte_pairs(
    special: tuple[str, ...], *, words: str | None = None, first: str | None = None, template: str | None = None
) -> Any:
    """Byte-level BPE with these special tokens. `words` is the rule for cutting text into words, by default GPT-2's;
    `first` is the token that the tokenizer puts before a text."""
    tokenizer = Tokenizer(models.BPE())
    cut = [] if words is None else [pre_tokenizers.Split(Regex(words), behavior="isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words is None)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=20_000,
        min_frequency=1,
        show_progress=False,
        special_tokens=_added(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    tokenizer.decoder = decoders.ByteLevel()
    return _finish(tokenizer, special, first, template)


@cache
def sentence_pieces(special: tuple[str, ...] = GEMMA_SPECIAL, template: str = GEMMA_TEMPLATE) -> Any:
    """BPE over characters with byte fallback in the manner of Gemma."""
    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizers.Replace(" ", "▁")
    learner.pre_tokenizer = pre_tokenizers.Split(Regex(r"▁?\p{L}+|\p{N}|\n+|[^\p{L}\p{N}]"), behavior="isolated")
    learner.train_from_iterator(_corpus(), trainers.BpeTrainer(vocab_size=20_000, min_frequency=1, show_progress=False))
    learned = json.loads(learner.to_str())["model"]
    tokens = (*special, *(f"<0x{byte:02X}>" for byte in range(256)), *learned["vocab"])
    model = models.BPE(
        {token: index for index, token in enumerate(dict.fromkeys(tokens))},
        [tuple(pair) for pair in learned["merges"]],
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(_added(special))
    return _finish(tokenizer, special, "<bos>", template)


def unigram(special: tuple[str, ...], template: str) -> Any:
    """A unigram model with every word of the corpus as a piece; the first of `special` stands for what is unknown."""
    words = sorted({word for text in _corpus() for word in re.findall(r"\w+", text)})
    text = "".join(_corpus())
    pieces = dict.fromkeys(special, 0.0)
    pieces |= dict.fromkeys(("▁", *sorted(set(text) - {" "})), -10.0)
    pieces |= {piece: -5.0 for word in words for piece in (word, f"▁{word}")}
    tokenizer = Tokenizer(models.Unigram(list(pieces.items()), unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.add_special_tokens(_added(special))
    return _finish(tokenizer, special, None, template)


def _added(special: tuple[str, ...]) -> list[AddedToken]:
    return [AddedToken(token, special=True, normalized=False) for token in special]


def _finish(tokenizer: Tokenizer, special: tuple[str, ...], first: str | None, template: str | None) -> Any:
    """The tokenizer as a model's; it puts `first` before a text."""
    if first is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A", special_tokens=[(first, special.index(first))]
        )
    names = {"<unk>": "unk_token", "<eos>": "eos_token", "<pad>": "pad_token"}
    roles = {names[token]: token for token in special if token in names}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=first, **roles)
    fast.chat_template = template
    return fast


def _corpus() -> list[str]:
    """Every word that a prompt can contain, with and without a blank before it. `Cutting` is left out: Llama 3 cuts it
    in two, and so do tokenizers that know `Cut` and `ting` only."""
    first, second, third, fourth = "QXYZ"
    story = Story(
        (Contains(first, third), Contains(second, fourth)),
        (Swap(first, second), Remove(third, second), Move(first, second), Put(third, first)),
    )
    text = f"{SYSTEM}\n\n{render_raw(Prompt(story, first)).text}"
    dates = "Cut ting\n\nCut Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n system user assistant model\n"
    words = "\n".join((*LABELS, *OBJECTS, "system", "user", "assistant", "model", "ting"))
    spaced = "".join(f" {word}" for word in (*LABELS, *OBJECTS))
    return [text, text.replace(".", ".\n\n"), dates, words, spaced]
