"""Chat forms: a fixed string for each family, or the tokenizer's own template.

A chat form cuts the raw prompt at its final `Answer:`, puts everything before it into the user's turn, and leaves the
assistant's turn open after the prefilled `Answer:`. Every form is a fixed prefix and a fixed suffix around the user's
text, so it is computed once per tokenizer, and it does not depend on the day of the run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

from rebinding.task.bounded import Failed, Unbounded, bounded
from rebinding.task.dates import DATE, PINNED_DAY
from rebinding.task.text import PREFILL, Rendered
from rebinding.task.thoughts import THINKING_OFF, beginning_of_answer

Form: TypeAlias = Literal["raw", "gemma", "llama3", "template"]
FORMS: tuple[Form, ...] = get_args(Form)

SYSTEM = "Respond with a single word only. No punctuation, no explanation."
TURN_TOKENS: Mapping[Form, str] = MappingProxyType({"gemma": "<start_of_turn>", "llama3": "<|start_header_id|>"})
"""The token that shows each of the forms written here."""

CHAT_TOKEN = re.compile("user|assistant|turn|header|message|im_start|inst|role|extra_id", re.IGNORECASE)
"""Names of tokens that only a chat needs. A tokenizer with one of them and no template has lost its template."""

_RENDERED: dict[tuple[type, str], tuple[str, str] | Failed] = {}
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
    """The chat form that fits a tokenizer, decided by its tokens and its template, never by a model's name.

    A base model's tokenizer has neither a template nor tokens of a chat: its prompts are raw.
    """
    vocabulary, template = tokenizer.get_vocab(), _template_of(tokenizer)
    for form, token in TURN_TOKENS.items():
        if token in vocabulary and (not template or token in template):
            return form
    if template:
        return "template"
    chat_tokens = sorted(filter(CHAT_TOKEN.search, tokenizer.get_added_vocab()))
    if chat_tokens:
        raise PromptError(
            f"this tokenizer has no chat template, but tokens of a chat ({', '.join(chat_tokens[:3])}). For a chat"
            " model, save its template with the tokenizer (chat_template.jinja); for a base model, pass form='raw'"
        )
    return "raw"


def _template_of(tokenizer: Any) -> str:
    """The tokenizer's default template; empty if it has none."""
    try:
        return str(tokenizer.get_chat_template()) if getattr(tokenizer, "chat_template", None) else ""
    except ValueError as error:
        raise PromptError(
            f"none of this tokenizer's chat templates is the default; keep one of them ({error})"
        ) from error


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
    """The text of the tokens that the tokenizer itself puts before a text, so that raw prompts contain them too."""
    if tokenizer is None:
        return ""
    encoding = tokenizer(PREFILL, return_special_tokens_mask=True)
    ids, is_special = encoding["input_ids"], encoding["special_tokens_mask"]
    n_before = (*is_special, 0).index(0)
    return "".join(tokenizer.convert_ids_to_tokens(ids[:n_before]))


def _from_template(tokenizer: Any) -> Wrapping:
    """Render the template around a marker and cut it there.

    A template that refuses or drops a system turn gets the system text at the head of the user's turn, as the published
    prompts do for Gemma 2.
    """
    if tokenizer is None or not _template_of(tokenizer):
        raise PromptError("form='template' needs a tokenizer that has a chat template; pass form='raw' otherwise")
    marker = "Here stands what the user says."
    turns = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": marker}]
    try:
        generation, turn = _apply(tokenizer, turns)
    except EndlessTemplate:
        raise
    except PromptError:
        generation = turn = ""
    if SYSTEM not in turn:
        generation, turn = _apply(tokenizer, [{"role": "user", "content": f"{SYSTEM}\n\n{marker}"}])
    if turn.count(marker) != 1 or SYSTEM not in turn:
        raise PromptError(
            "the chat template does not show system and user text exactly once and unchanged; pass form='raw'."
            f" It gives:\n{turn[:1000]}"
        )
    if not turn.endswith(PREFILL):
        raise PromptError(
            f"the chat template closes or changes the assistant's prefilled turn: it ends with {turn[-60:]!r} and"
            f" not with {PREFILL!r}; pass form='raw', or a template that continues the final message"
        )
    beginning = beginning_of_answer(generation, turn.removesuffix(PREFILL))
    if beginning is None:
        raise PromptError(
            f"the chat template begins an answer in two ways: a prompt ends with {generation[-60:]!r}, a prefilled turn"
            f" with {turn[-60:]!r}; pass form='raw', or a template in which the second continues the first"
        )
    prefix, suffix = beginning.split(marker)
    return Wrapping(prefix, f"{suffix}{PREFILL}")


def _apply(tokenizer: Any, turns: list[dict[str, str]]) -> tuple[str, str]:
    """The prompt for generation after these turns, and the conversation that ends with the prefilled answer."""
    key = type(tokenizer), json.dumps([tokenizer.chat_template, tokenizer.special_tokens_map, turns], default=str)
    if key not in _RENDERED:
        if len(_RENDERED) >= MOST_RENDERED:
            _RENDERED.clear()
        _RENDERED[key] = _render_template(tokenizer, turns)
    texts = _RENDERED[key]
    if isinstance(texts, Failed):
        raise PromptError(
            f"the chat template refuses a conversation that ends with the prefilled {PREFILL!r} ({texts});"
            " pass form='raw', or a template that continues the final message"
        ) from texts
    return texts


def _render_template(tokenizer: Any, turns: list[dict[str, str]]) -> tuple[str, str] | Failed:
    """Both texts as rendered by the template, in one child process, or the template's error."""

    def render(turns: list[dict[str, str]], **options: bool) -> str:
        return str(
            tokenizer.apply_chat_template(
                turns,
                chat_template=f"{PINNED_DAY}{tokenizer.get_chat_template()}",
                tokenize=False,
                date_string=DATE,
                **THINKING_OFF,
                **options,
            )
        )

    def render_both() -> str:
        answer = {"role": "assistant", "content": PREFILL}
        return json.dumps(
            [render(turns, add_generation_prompt=True), render([*turns, answer], continue_final_message=True)]
        )

    try:
        generation, turn = json.loads(bounded(render_both))
        return generation, turn
    except Failed as error:
        return Failed(str(error))  # without the original's frames, which would keep the tokenizer alive
    except Unbounded as error:
        raise EndlessTemplate(f"the chat template was stopped: {error}; pass form='raw'") from error
