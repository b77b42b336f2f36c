"""Chats of many families: the text around a prompt is what the family's template gives, the answer follows it, and no
way round is silent.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from rebinding.task import chat
from rebinding.task.chat import SYSTEM, PromptError, beginning_of_answer, form_of, wrapping
from rebinding.task.designs import design
from rebinding.task.prompts import Encoder, Prompt, render
from rebinding.task.text import PREFILL, render_raw
from rebinding.task.words import LABELS, OBJECTS

from .chat_families import CHAT_FAMILIES, CHATML, CHATML_SPECIAL, Family, turns
from .stories import prompts
from .tokenizers import LLAMA_WORDS, byte_level, byte_pairs, sentence_pieces, word_level

CHAT = {"words": word_level(), "bytes": byte_level(), "pieces": sentence_pieces()}
FORM = {name: form_of(tokenizer) for name, tokenizer in CHAT.items()}


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


# Families

N_PROMPTS = 60
"""Enough for every label and nearly every object."""


@pytest.fixture(scope="module", params=CHAT_FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return CHAT_FAMILIES[request.param]


@pytest.fixture(scope="module")
def encoder(family: Family) -> Encoder:
    return Encoder(family.make())


def test_the_text_around_a_prompt_is_the_familys(family: Family, encoder: Encoder) -> None:
    assert encoder.form == form_of(encoder.tokenizer) == family.form
    (encoded,) = encoder.encode([design().prompt(0)])
    user = render_raw(encoded.prompt).text.removesuffix(f"\n\n{PREFILL}")
    assert encoded.text == f"{family.prefix}{user}{family.suffix}"


def test_every_role_is_the_token_of_its_word(encoder: Encoder) -> None:
    words: set[str] = set()
    for encoded in encoder.encode(map(design(split="none").prompt, range(N_PROMPTS))):
        story, roles = encoded.prompt.story, encoded.roles
        expected = {"question_box": encoded.prompt.question, "readout": ":", "swap_period": "."}
        for slot, statement in enumerate(story.contents):
            expected |= {f"context_box[{slot}]": statement.box, f"context_object[{slot}]": statement.object}
        decoded = {role: encoder.tokenizer.decode([encoded.ids[roles[role]]]).strip() for role in expected}
        assert decoded == expected
        words.update(decoded.values())
    assert words >= set(LABELS)


def test_the_readout_is_the_last_token_and_the_answer_the_next(encoder: Encoder) -> None:
    """Every object is one token behind a whole prompt, and a token of its own."""
    (encoded,) = encoder.encode([design().prompt(0)])
    assert encoded.roles["readout"] == len(encoded.ids) - 1
    for word, token in zip(OBJECTS, encoder.answer_tokens(OBJECTS), strict=True):
        ids = encoder.tokenizer(f"{encoded.text} {word}", add_special_tokens=False)["input_ids"]
        assert ids == [*encoded.ids, token]


def test_raw_prompts_begin_as_the_tokenizer_begins_a_text(encoder: Encoder) -> None:
    raw = Encoder(encoder.tokenizer, "raw")
    (encoded,) = raw.encode([design().prompt(0)])
    assert list(encoded.ids) == encoder.tokenizer(render_raw(encoded.prompt).text)["input_ids"]


def test_a_chat_tokenizer_that_lost_its_template_is_refused() -> None:
    with pytest.raises(PromptError, match=r"but tokens of a chat \(<\|im_start\|>\).*chat_template.jinja.*form='raw'"):
        form_of(byte_pairs(CHATML_SPECIAL))


def test_one_of_several_templates_has_to_be_the_default() -> None:
    tokenizer = byte_pairs(CHATML_SPECIAL)
    template = turns(CHATML, r"<|im_start|>assistant\n")
    tokenizer.chat_template = {"default": template, "tools": "{{ messages }}"}
    assert wrapping(form_of(tokenizer), tokenizer).suffix == "<|im_end|>\n<|im_start|>assistant\nAnswer:"
    tokenizer.chat_template = {"rag": template, "tools": "{{ messages }}"}
    with pytest.raises(PromptError, match="none of this tokenizer's chat templates is the default; keep one of them"):
        form_of(tokenizer)


BEGINNINGS = {
    "alike": ("<user>?<model>", "<user>?<model>", "<user>?<model>"),
    "a line break only for generation": ("<model>\n", "<model>", "<model>\n"),
    "a blank only in the turn": ("[/INST]", "[/INST] ", "[/INST] "),
    "a channel only in the turn": ("<model>", "<model><final>", "<model><final>"),
    "an empty thought": ("<model>\n<think></think>\n", "<model>\n", "<model>\n<think></think>\n"),
    "an open thought": ("<model>\n<think>\n", "<model>\n", "<model>\n<think>\n\n</think>\n\n"),
    "an open thought of another kind": ("<model>[THINK]", "<model>", "<model>[THINK]\n\n[/THINK]\n\n"),
    "a thought and more": ("<model><think></think><plan>", "<model>", None),
    "other headers": ("<model>", "<assistant>", None),
}


@pytest.mark.parametrize(("generation", "turn", "beginning"), BEGINNINGS.values(), ids=BEGINNINGS)
def test_an_answer_follows_the_longer_beginning(generation: str, turn: str, beginning: str | None) -> None:
    assert beginning_of_answer(generation, turn) == beginning


def test_templates_are_told_not_to_ask_for_a_thought() -> None:
    asking = "{{ 'Think first. ' if enable_thinking | default(true) or thinking | default(true) }}"
    tokenizer = byte_pairs((), template=turns("TEXT", "", first=asking))
    assert wrapping("template", tokenizer).prefix == SYSTEM


@pytest.mark.parametrize("generation", [r"<|im_start|>assistant\n<plan>\n", r"<|im_start|>tutor\n"])
def test_a_prompt_that_begins_an_answer_in_an_unknown_way_is_refused(generation: str) -> None:
    tokenizer = byte_pairs(CHATML_SPECIAL, words=LLAMA_WORDS, template=turns(CHATML, generation))
    with pytest.raises(PromptError, match=r"begins an answer in two ways: a prompt ends with .*pass form='raw'"):
        Encoder(tokenizer)


def test_a_date_is_written_in_the_format_that_the_template_wants() -> None:
    dates = {"%d %b %Y": "26 Jul 2024", "%Y-%m-%d": "2024-07-26", "%A, %B %-d, %y": "Friday, July 26, 24"}
    for format, date in dates.items():
        assert wrapping("template", byte_pairs((), template=_dated(format))).prefix.startswith(f"<{date}>")
    with pytest.raises(PromptError, match=r"it asks for a date as %d %Q.*pass form='raw'"):
        Encoder(byte_pairs((), template=_dated("%d %Q")))


def _dated(format: str) -> str:
    return turns("TEXT", "", first=f"{{{{ '<' + strftime_now('{format}') + '>' }}}}")
