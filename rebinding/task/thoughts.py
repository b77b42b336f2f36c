"""Where the answer begins in a chat: behind the assistant's header, and behind a closed thought.

A template shows the beginning of an answer twice: in a prompt for generation, and in the assistant's turn of a finished
conversation. Families that think or answer in channels write more in one of the two.

| family | prompt for generation ends with | assistant's turn begins with |
|---|---|---|
| GPT-OSS | the header | the header and the channel `final` |
| Qwen 3, Qwen 3.5 | the header and an empty thought | the same |
| Gemma 4, large | the header and an empty thought | the header |
| models that always think | the header and an open thought | the header |

The answer follows the longer beginning. An open thought is closed first, so the answer is no part of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

THINKING_OFF: Mapping[str, bool] = MappingProxyType({"enable_thinking": False, "thinking": False})
"""The arguments by which templates are told not to ask for a thought."""

THOUGHTS: Mapping[str, str] = MappingProxyType(
    {
        "<think>": "</think>",  # Qwen, DeepSeek, GLM, SmolLM
        "<|channel>": "<channel|>",  # Gemma 4
        "[THINK]": "[/THINK]",  # Mistral
        "<|START_THINKING|>": "<|END_THINKING|>",  # Command
    }
)
"""The marks around a thought."""

_THOUGHT = re.compile("|".join(f"{re.escape(start)}.*?{re.escape(end)}" for start, end in THOUGHTS.items()), re.DOTALL)


def beginning_of_answer(generation: str, turn: str) -> str | None:
    """The text up to the answer, from the prompt for generation and from the conversation up to the assistant's text.

    None if one is no continuation of the other, or if the prompt adds anything but a thought.
    """
    if turn.startswith(generation.rstrip()):
        return max(generation, turn, key=len)
    if not generation.startswith(turn.rstrip()):
        return None
    addition = _close(generation[len(turn.rstrip()) :])
    return None if _THOUGHT.sub("", addition).strip() else f"{turn.rstrip()}{addition}"


def _close(text: str) -> str:
    """The text with its thought closed, as a template writes an empty one."""
    for start, end in THOUGHTS.items():
        if start in text and end not in text:
            return f"{text.rstrip()}\n\n{end}\n\n"
    return text
