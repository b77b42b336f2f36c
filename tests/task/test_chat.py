"""Chat forms: explicit strings that equal what the templates of the families give, and no silent way round."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from rebinding.task import chat
from rebinding.task.chat import SYSTEM, PromptError, form_of, wrapping
from rebinding.task.designs import design
from rebinding.task.prompts import Encoder, Prompt, render
from rebinding.task.text import render_raw

from .stories import prompts
from .tokenizers import byte_level, sentence_pieces, word_level

CHAT = {"words": word_level(), "bytes": byte_level(), "pieces": sentence_pieces()}
FORM = {name: form_of(tokenizer) for name, tokenizer in CHAT.items()}


def test_the_form_is_read_off_the_vocabulary() -> None:
    assert FORM == {"words": "template", "bytes": "llama3", "pieces": "gemma"}


def test_the_published_strings() -> None:
    prompt = design().prompt(0)
    user = render_raw(prompt).text.removesuffix("\n\nAnswer:")
    assert render(prompt, "gemma").text == (
        f"<bos><start_of_turn>user\n{SYSTEM}\n\n{user}<end_of_turn>\n<start_of_turn>model\nAnswer:"
    )
    assert render(prompt, "llama3").text == (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
        f"Today Date: 26 Jul 2024\n\n{SYSTEM}<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n{user}<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nAnswer:"
    )


@given(prompt=prompts())
@pytest.mark.parametrize("name", CHAT)
def test_a_form_equals_the_familys_template(name: str, prompt: Prompt) -> None:
    """Llama's template dates the prompt by the day of the run unless told otherwise; Gemma's refuses a system turn."""
    tokenizer = CHAT[name]
    user = render_raw(prompt).text.removesuffix("\n\nAnswer:")
    system = [] if name == "pieces" else [{"role": "system", "content": SYSTEM}]
    turns = [
        *system,
        {"role": "user", "content": user if system else f"{SYSTEM}\n\n{user}"},
        {"role": "assistant", "content": "Answer:"},
    ]
    expected = tokenizer.apply_chat_template(
        turns, tokenize=False, continue_final_message=True, date_string="26 Jul 2024"
    )
    assert render(prompt, FORM[name], tokenizer).text == expected
    assert render(prompt, "template", tokenizer).text == expected


def test_a_template_that_asks_for_the_day_gets_the_pinned_one() -> None:
    tokenizer = _with_template(
        "{{ '<bos>' + strftime_now('%d %B %Y') }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
    )
    assert wrapping("template", tokenizer).prefix == f"<bos>26 July 2024{SYSTEM}"


def test_a_template_is_rendered_once_for_what_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another first token is something else, and so is another template."""
    forks: list[str] = []
    monkeypatch.setattr(chat, "_RENDERED", {})
    monkeypatch.setattr(chat, "bounded", lambda make: forks.append(make()) or forks[-1])
    text = "{{ bos_token }}once{% for message in messages %}{{ message['content'] }}{% endfor %}"
    tokenizer = _with_template(text)
    first = wrapping("template", tokenizer)
    assert wrapping("template", _with_template(text)) == first
    assert len(forks) == 1
    tokenizer.bos_token = tokenizer.eos_token
    second = wrapping("template", tokenizer)
    assert second.prefix == first.prefix.replace("<bos>", tokenizer.eos_token)
    assert second != first
    tokenizer.chat_template = text.replace("once", "twice")
    assert "twice" in wrapping("template", tokenizer).prefix
    assert len(forks) == 3


def test_a_template_that_drops_the_system_turn_gets_its_text_from_the_user() -> None:
    tokenizer = _with_template(
        "<bos>{% for message in messages if message['role'] != 'system' %}<user>{{ message['content'] }}{% endfor %}"
    )
    assert wrapping("template", tokenizer).prefix == f"<bos><user>{SYSTEM}\n\n"


BAD_TEMPLATES = {
    "no prefill": (
        "{% for message in messages %}{% if message['role'] == 'assistant' %}"
        "{{ raise_exception('user must speak last') }}{% endif %}{{ message['content'] }}{% endfor %}",
        "refuses a conversation that ends with the prefilled 'Answer:'.*user must speak last.*form='raw'",
    ),
    "answer hidden": (
        "{% for message in messages if message['role'] != 'assistant' %}{{ message['content'] }}{% endfor %}",
        "refuses a conversation that ends with the prefilled 'Answer:'",
    ),
    "answer changed": (
        "Answer:{% for message in messages %}{{ message['content'] | replace('Answer:', 'Reply:') }}{% endfor %}",
        "closes or changes the assistant's prefilled turn",
    ),
    "user twice": (
        "{% for message in messages %}{{ messages[1]['content'] + message['content'] }}{% endfor %}",
        "does not show system and user text exactly once",
    ),
}


@pytest.mark.parametrize(("template", "message"), BAD_TEMPLATES.values(), ids=BAD_TEMPLATES)
def test_a_template_that_cannot_hold_the_prompt_is_refused(template: str, message: str) -> None:
    with pytest.raises(PromptError, match=f"(?s){message}"):
        Encoder(_with_template(template))


def test_raw_prompts_without_a_chat_have_to_be_asked_for() -> None:
    tokenizer = _with_template(None)
    with pytest.raises(PromptError, match=r"no chat template.*pass form='raw'"):
        Encoder(tokenizer)
    with pytest.raises(PromptError, match="form='template' needs a tokenizer that has a chat template"):
        Encoder(tokenizer, "template")
    assert Encoder(tokenizer, "raw").encode([design().prompt(0)])[0].text.startswith("<bos>Answer the question")


def test_an_unknown_form_is_named() -> None:
    with pytest.raises(PromptError, match="there is no form 'chatml'; the forms are raw, gemma, llama3, template"):
        wrapping("chatml")  # type: ignore[arg-type]  # what the test is about


def _with_template(template: str | None) -> Any:
    from rebinding.planted.tokenizer import build_tokenizer

    tokenizer = build_tokenizer()
    tokenizer.chat_template = template
    return tokenizer
