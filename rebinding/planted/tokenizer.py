"""The word-level tokenizer of the planted models: every word of the task is one token. It has its own chat template.

Words do not depend on the blanks before them; full stop, colon, comma, question mark and line breaks are tokens too.
The vocabulary is the template's words in order of appearance, then the published labels and objects, so the ids never
depend on anything but this file and the template.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors

from rebinding.task.boxes import Contains, Move, Put, Remove, Story, Swap
from rebinding.task.chat import SYSTEM
from rebinding.task.text import Prompt, render_raw
from rebinding.task.words import LABELS, OBJECTS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPECIAL = ("<pad>", "<unk>", "<bos>", "<end>", "<system>", "<user>", "<assistant>")
PUNCTUATION = (".", ",", ":", "?", "\n", "\n\n")
TEMPLATE = (
    "{{ '<bos>' }}"
    "{% for message in messages %}{{ '<' + message['role'] + '>' + message['content'] + '<end>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A new tokenizer, the same one every time."""
    from transformers import PreTrainedTokenizerFast

    words = dict.fromkeys((*SPECIAL, *PUNCTUATION, *_template_words(), *LABELS, *OBJECTS))
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\n\n|\n|[.,:?]"), behavior="isolated"),
            pre_tokenizers.Split(Regex(" +"), behavior="removed"),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", vocabulary["<bos>"])]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<end>",
        pad_token="<pad>",
        unk_token="<unk>",
        additional_special_tokens=["<system>", "<user>", "<assistant>"],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = TEMPLATE
    return fast


def _template_words() -> list[str]:
    """Every word that the template can write around labels and objects, taken from a story with all operations."""
    first, second, third, fourth = "1234"
    story = Story(
        (Contains(first, third), Contains(second, fourth)),
        (Swap(first, second), Remove(third, second), Move(first, second), Put(third, first)),
    )
    words = re.findall(r"[A-Za-z]+", f"{SYSTEM} {render_raw(Prompt(story, first)).text}")
    return list(dict.fromkeys(words))
