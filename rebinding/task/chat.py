"""Chat forms: a fixed string for each family, or the tokenizer's own template.

**Untrusted text** is rendered in a child process with limits on time and memory.

A chat template is a program. The sandbox of Jinja keeps it from files and from Python's internals, but not from endless
loops or from doubling a text sixty times; and no signal interrupts C code such as 9 ** 9 ** 9. So a fork renders it,
and is killed when it takes too long. On systems without fork it is rendered in this process.

**The date** in a prompt is always the same one, so a prompt does not depend on the day of the run.

**The answer** begins behind the assistant's header, and behind a closed thought.

A template shows the beginning of an answer twice: in a prompt for generation, and in the assistant's turn of a finished
conversation. Families that think or answer in channels write more in one of the two.

| family | prompt for generation ends with | assistant's turn begins with |
|---|---|---|
| GPT-OSS | the header | the header and the channel `final` |
| Qwen 3, Qwen 3.5 | the header and an empty thought | the same |
| Gemma 4, large | the header and an empty thought | the header |
| models that always think | the header and an open thought | the header |

The answer follows the longer beginning. An open thought is closed first, so the answer is no part of it.

A chat form cuts the raw prompt at its final `Answer:`, puts everything before it into the user's turn, and leaves the
assistant's turn open after the prefilled `Answer:`. Every form is a fixed prefix and a fixed suffix around the user's
text, so it is computed once per tokenizer, and it does not depend on the day of the run.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

from rebinding.task.text import PREFILL, Rendered

SECONDS = 5
"""Processor time limit of a template; ordinary ones take milliseconds."""
PATIENCE = 60.0
"""Wall-clock limit in seconds, for a busy machine."""
MEMORY = 1 << 30
"""Bytes of memory that it may take besides those of this process."""
LONGEST = 1 << 20
"""Length limit of the text in bytes."""
DONE, FAILED = b"+", b"-"


class Unbounded(ValueError):
    """Text that took too long, too much memory, or is too long itself."""


class Failed(ValueError):
    """An error while rendering; the message is that of the error."""


def bounded(make: Callable[[], str]) -> str:
    """The result of `make`, run in a child process; its side effects are not visible here."""
    if not hasattr(os, "fork"):
        return make()
    out, into = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # warns of threads; the child runs only Python code, and ends
        child = os.fork()
    if child == 0:
        _be_child(make, into)
    os.close(into)
    try:
        reply = _read(out)
    finally:
        os.close(out)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if reply[:1] == FAILED:
        raise Failed(reply[1:].decode(errors="replace"))
    if reply[:1] != DONE:
        raise Unbounded(f"it took more than {SECONDS} s, more than {MEMORY >> 20} MB, or ended the process")
    return reply[1:].decode()


def _be_child(make: Callable[[], str], into: int) -> None:
    """Make the text, write it, and exit without cleaning up anything of the parent."""
    try:
        limit(SECONDS)
        try:
            reply = DONE + make().encode()
        except MemoryError:
            reply = b""
        except Exception as error:
            reply = FAILED + str(error).encode(errors="replace")[:1000]
        with os.fdopen(into, "wb") as file:
            file.write(reply)
    finally:
        os._exit(0)


def limit(seconds: int) -> None:
    """Let the kernel limit the processor time and the memory of this process."""
    import resource

    def at_most(kind: int, amount: int) -> None:
        most = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (amount if most == resource.RLIM_INFINITY else min(amount, most), most))

    at_most(resource.RLIMIT_CPU, seconds)
    if os.path.exists("/proc/self/statm"):
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        at_most(resource.RLIMIT_AS, pages * resource.getpagesize() + MEMORY)


def _read(out: int) -> bytes:
    """The output of the child; empty if it does not end in time."""
    deadline, content = time.monotonic() + PATIENCE, b""
    while select.select([out], [], [], max(0.0, deadline - time.monotonic()))[0]:
        piece = os.read(out, 1 << 16)
        if not piece:
            return content
        content += piece
        if len(content) > LONGEST:
            raise Unbounded(f"it is longer than {LONGEST >> 20} MB")
    return b""


DATE = "26 Jul 2024"
"""The date in Llama 3's system turn. Without one, Llama 3.1 writes this date and Llama 3.2 the day of the run."""

DAY: Mapping[str, str] = MappingProxyType(
    {"%a": "Fri", "%A": "Friday", "%d": "26", "%-d": "26", "%e": "26", "%b": "Jul", "%B": "July", "%m": "07"}
    | {"%y": "24", "%Y": "2024", "%F": "2024-07-26", "%H": "00", "%M": "00", "%S": "00", "%T": "00:00:00"}
)
"""The same day at midnight, by the codes of a date format."""

PINNED_DAY = (
    "{% macro strftime_now(format) -%}{% set day = format"
    + "".join(f" | replace({code!r}, {text!r})" for code, text in DAY.items())
    + " %}{{ raise_exception('it asks for a date as ' ~ format) if '%' in day else day }}{%- endmacro %}"
)
"""A macro before a template, so that a request for the day of the run returns the pinned date in the wanted format."""


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
