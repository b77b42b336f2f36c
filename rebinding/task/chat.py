"""Chat forms: a fixed string for each family, or the tokenizer's own template.

A chat form cuts the raw prompt at its final `Answer:`, puts everything before it into the user's turn, and leaves the
assistant's turn open after the prefilled `Answer:`. Every form is a fixed prefix and a fixed suffix around the user's
text, so it is computed once per tokenizer, and it does not depend on the day of the run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from rebinding.task.bounded import Failed, Unbounded, bounded
from rebinding.task.text import PREFILL, Rendered

Form: TypeAlias = Literal["raw", "gemma", "llama3", "template"]
FORMS: tuple[Form, ...] = get_args(Form)

SYSTEM = "Respond with a single word only. No punctuation, no explanation."
DATE = "26 Jul 2024"
"""The date in Llama 3's system turn. Without one, Llama 3.1 writes this date and Llama 3.2 the day of the run."""

PINNED_DAY = f"{{% macro strftime_now(format) -%}}{DATE}{{%- endmacro %}}"
"""A macro before a template, so that a request for the day of the run returns the pinned date."""


_RENDERED: dict[tuple[type, str], str | Failed] = {}
"""A cache of rendered templates, by their inputs: in a large process a fork costs a tenth of a second."""
MOST_RENDERED = 64


class PromptError(ValueError):
    """A prompt that cannot be written or tokenised as the experiments need it."""


class EndlessTemplate(PromptError):
    """A chat template that exceeds its limits of time or memory."""


@dataclass(frozen=True)
class Wrapping:
    """The text before and after the user's text; `suffix` ends with the prefilled `Answer:`."""

    prefix: str
    suffix: str

    def around(self, raw: Rendered) -> Rendered:
        """The wrapped prompt. The readout moves to the end of the suffix, other roles by the length of the prefix."""
        user = raw.text.removesuffix(PREFILL).rstrip()
        text = f"{self.prefix}{user}{self.suffix}"
        shift = len(self.prefix)
        spans = {role: (start + shift, end + shift) for role, (start, end) in raw.spans.items()}
        spans["readout"] = (len(text) - 1, len(text))
        return Rendered(text, spans)


def form_of(tokenizer: Any) -> Form:
    """The chat form that fits a tokenizer, decided by its vocabulary and never by a model's name."""
    vocabulary = tokenizer.get_vocab()
    if "<start_of_turn>" in vocabulary:
        return "gemma"
    if "<|start_header_id|>" in vocabulary:
        return "llama3"
    if getattr(tokenizer, "chat_template", None):
        return "template"
    raise PromptError(
        "this tokenizer has no chat template and none of the known turn tokens; pass form='raw' to use prompts without"
        " a chat around them"
    )


def wrapping(form: Form, tokenizer: Any = None) -> Wrapping:
    """The prefix and suffix of a form. `template` needs the tokenizer; `raw` uses it to find the first token's text."""
    match form:
        case "raw":
            return Wrapping(_beginning(tokenizer), f"\n\n{PREFILL}")
        case "gemma":
            return Wrapping(
                f"<bos><start_of_turn>user\n{SYSTEM}\n\n", f"<end_of_turn>\n<start_of_turn>model\n{PREFILL}"
            )
        case "llama3":
            dates = f"Cutting Knowledge Date: December 2023\nToday Date: {DATE}\n\n"
            system = f"<|begin_of_text|>{_head('system')}{dates}{SYSTEM}<|eot_id|>"
            return Wrapping(f"{system}{_head('user')}", f"<|eot_id|>{_head('assistant')}{PREFILL}")
        case "template":
            return _from_template(tokenizer)
    raise PromptError(f"there is no form {form!r}; the forms are {', '.join(FORMS)}")


def _head(role: str) -> str:
    return f"<|start_header_id|>{role}<|end_header_id|>\n\n"


def _beginning(tokenizer: Any) -> str:
    """The text of the token that the tokenizer itself puts before a text, so that raw prompts contain it too."""
    if tokenizer is None or tokenizer.bos_token_id is None:
        return ""
    starts_with_it = tokenizer(PREFILL)["input_ids"][:1] == [tokenizer.bos_token_id]
    return str(tokenizer.bos_token) if starts_with_it else ""


def _from_template(tokenizer: Any) -> Wrapping:
    """Render the template around a marker and cut it there.

    A template that refuses or drops a system turn gets the system text at the head of the user's turn, as the published
    prompts do for Gemma 2.
    """
    if tokenizer is None or not getattr(tokenizer, "chat_template", None):
        raise PromptError("form='template' needs a tokenizer that has a chat template; pass form='raw' otherwise")
    marker = "Here stands what the user says."
    turns = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": marker}]
    try:
        text = _apply(tokenizer, turns)
    except EndlessTemplate:
        raise
    except PromptError:
        text = ""
    if SYSTEM not in text:
        text = _apply(tokenizer, [{"role": "user", "content": f"{SYSTEM}\n\n{marker}"}])
    if text.count(marker) != 1 or SYSTEM not in text:
        raise PromptError(
            "the chat template does not show system and user text exactly once and unchanged; pass form='raw'."
            f" It gives:\n{text[:1000]}"
        )
    prefix, suffix = text.split(marker)
    if not suffix.endswith(PREFILL):
        raise PromptError(
            f"the chat template closes or changes the assistant's prefilled turn: it ends with {suffix[-60:]!r} and"
            f" not with {PREFILL!r}; pass form='raw', or a template that continues the final message"
        )
    return Wrapping(prefix, suffix)


def _apply(tokenizer: Any, turns: list[dict[str, str]]) -> str:
    turns = [*turns, {"role": "assistant", "content": PREFILL}]
    key = type(tokenizer), json.dumps([tokenizer.chat_template, tokenizer.special_tokens_map, turns], default=str)
    if key not in _RENDERED:
        if len(_RENDERED) >= MOST_RENDERED:
            _RENDERED.clear()
        _RENDERED[key] = _render_template(tokenizer, turns)
    text = _RENDERED[key]
    if isinstance(text, Failed):
        raise PromptError(
            f"the chat template refuses a conversation that ends with the prefilled {PREFILL!r} ({text});"
            " pass form='raw', or a template that continues the final message"
        ) from text
    return text


def _render_template(tokenizer: Any, turns: list[dict[str, str]]) -> str | Failed:
    """The conversation as rendered by the template, or the template's error."""

    def render() -> str:
        return str(
            tokenizer.apply_chat_template(
                turns,
                chat_template=f"{PINNED_DAY}{tokenizer.get_chat_template()}",
                tokenize=False,
                continue_final_message=True,
                date_string=DATE,
            )
        )

    try:
        return bounded(render)
    except Failed as error:
        return Failed(str(error))  # without the original's frames, which would keep the tokenizer alive
    except Unbounded as error:
        raise EndlessTemplate(f"the chat template was stopped: {error}; pass form='raw'") from error
