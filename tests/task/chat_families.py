"""The chat of each family: a tokenizer of its kind, a template with its marks, and the text around a prompt.

The templates are written for these tests; the marks, and what a prompt for generation and an assistant's turn begin
with, are the family's. `prefix` and `suffix` are written out by hand: nothing here is computed by the code under test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rebinding.task.chat import SYSTEM, Form

from .tokenizers import GEMMA_TEMPLATE, LLAMA_WORDS, byte_level, byte_pairs, sentence_pieces, unigram


def turns(turn: str, generation: str, *, first: str = "", names: str = "") -> str:
    """A template of one text per turn (`ROLE`, `TEXT`) and one for generation. `names` renames roles."""
    written = turn.replace("ROLE", "' + role + '").replace("TEXT", "' + message['content'] + '")
    role = f"{{% set role = {{{names}}}.get(message['role'], message['role']) %}}"
    return (
        f"{first}{{% for message in messages %}}{role}{{{{ '{written}' }}}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{{{{ '{generation}' }}}}{{% endif %}}"
    )


CHATML = r"<|im_start|>ROLE\nTEXT<|im_end|>\n"
CHATML_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
THINKING = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' and loop.last %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{{ message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '\n</think>\n\n' }}{% endif %}{% endif %}"
)
HARMONY = (
    "{% macro describe() %}{{ 'Current date: ' + strftime_now('%Y-%m-%d') + '\n\nReasoning: medium' }}{% endmacro %}"
    "{{ '<|start|>system<|message|>' + describe() + '<|end|>' }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}"
    "{{ '<|start|>developer<|message|># Instructions\n\n' + message['content'] + '<|end|>' }}"
    "{% elif message['role'] == 'assistant' %}"
    "{{ '<|start|>assistant<|channel|>final<|message|>' + message['content'] }}"
    "{{ '<|return|>' if loop.last else '<|end|>' }}"
    "{% else %}{{ '<|start|>user<|message|>' + message['content'] + '<|end|>' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)
NEMOTRON = (
    r"{{ '<extra_id_0>System\n' }}{% for message in messages %}"
    r"{% if message['role'] == 'system' %}{{ message['content'] + '\n' }}{% endif %}{% endfor %}"
    r"{% for message in messages if message['role'] != 'system' %}"
    r"{{ '\n<extra_id_1>' + message['role'].capitalize() + '\n' + message['content'] }}{% endfor %}"
    r"{% if add_generation_prompt %}{{ '\n<extra_id_1>Assistant\n' }}{% endif %}"
)
GEMMA4_SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>", "<|channel>", "<channel|>")


@dataclass(frozen=True)
class Family:
    """A tokenizer of the family's kind, its chat form, and the text before and after the user's text."""

    make: Callable[[], Any]
    form: Form
    prefix: str
    suffix: str


def _thinking(template: str) -> Family:
    return Family(
        lambda: byte_pairs(CHATML_SPECIAL, words=LLAMA_WORDS, template=template),
        "template",
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n",
        "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nAnswer:",
    )


CHAT_FAMILIES = {
    "gpt2, phi": Family(lambda: byte_pairs(("<|endoftext|>",)), "raw", "", "\n\nAnswer:"),
    "opt": Family(lambda: byte_pairs(("<s>", "<pad>", "</s>"), first="</s>"), "raw", "</s>", "\n\nAnswer:"),
    "stablelm": Family(
        lambda: byte_pairs(
            ("<|endoftext|>", "<|padding|>"),
            template=turns(r"<|ROLE|>\nTEXT<|endoftext|>\n", r"<|assistant|>\n"),
        ),
        "template",
        f"<|system|>\n{SYSTEM}<|endoftext|>\n<|user|>\n",
        "<|endoftext|>\n<|assistant|>\nAnswer:",
    ),
    "nemotron": Family(
        lambda: unigram(("<unk>", "<s>", "</s>", "<extra_id_0>", "<extra_id_1>"), NEMOTRON),
        "template",
        f"<extra_id_0>System\n{SYSTEM}\n\n<extra_id_1>User\n",
        "\n<extra_id_1>Assistant\nAnswer:",
    ),
    "gpt_oss": Family(
        lambda: byte_pairs(
            ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>"), words=LLAMA_WORDS, template=HARMONY
        ),
        "template",
        "<|start|>system<|message|>Current date: 2024-07-26\n\nReasoning: medium<|end|>"
        f"<|start|>developer<|message|># Instructions\n\n{SYSTEM}<|end|><|start|>user<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>Answer:",
    ),
    "llama4": Family(
        lambda: byte_pairs(
            ("<|begin_of_text|>", "<|header_start|>", "<|header_end|>", "<|eot|>"),
            words=LLAMA_WORDS,
            first="<|begin_of_text|>",
            template=turns(
                r"<|header_start|>ROLE<|header_end|>\n\nTEXT<|eot|>",
                r"<|header_start|>assistant<|header_end|>\n\n",
                first="{{ bos_token }}",
            ),
        ),
        "template",
        f"<|begin_of_text|><|header_start|>system<|header_end|>\n\n{SYSTEM}<|eot|>"
        "<|header_start|>user<|header_end|>\n\n",
        "<|eot|><|header_start|>assistant<|header_end|>\n\nAnswer:",
    ),
    "llama3": Family(
        byte_level,
        "llama3",
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
        f"Today Date: 26 Jul 2024\n\n{SYSTEM}<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n",
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nAnswer:",
    ),
    "gemma3n": Family(
        lambda: sentence_pieces(template=GEMMA_TEMPLATE),
        "gemma",
        f"<bos><start_of_turn>user\n{SYSTEM}\n\n",
        "<end_of_turn>\n<start_of_turn>model\nAnswer:",
    ),
    "gemma4": Family(
        lambda: sentence_pieces(
            GEMMA4_SPECIAL,
            turns(
                r"<|turn>ROLE\nTEXT<turn|>\n",
                r"<|turn>model\n<|channel>thought\n<channel|>",
                first="{{ bos_token }}",
                names="'assistant': 'model'",
            ),
        ),
        "template",
        f"<bos><|turn>system\n{SYSTEM}<turn|>\n<|turn>user\n",
        "<turn|>\n<|turn>model\n<|channel>thought\n<channel|>Answer:",
    ),
    "qwen3_next": Family(
        lambda: byte_pairs(CHATML_SPECIAL, words=LLAMA_WORDS, template=turns(CHATML, r"<|im_start|>assistant\n")),
        "template",
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n",
        "<|im_end|>\n<|im_start|>assistant\nAnswer:",
    ),
    "qwen3_5": _thinking(THINKING),
    "always thinks": _thinking(turns(CHATML, r"<|im_start|>assistant\n<think>\n")),
    "llama3 vocabulary, other chat": Family(
        lambda: byte_pairs(
            ("<|begin_of_text|>", "<|start_header_id|>", *CHATML_SPECIAL),
            words=LLAMA_WORDS,
            template=turns(CHATML, r"<|im_start|>assistant\n"),
        ),
        "template",
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n",
        "<|im_end|>\n<|im_start|>assistant\nAnswer:",
    ),
}
