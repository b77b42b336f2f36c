"""Tokens: under every kind of tokenizer a role is the token of its word, and edits change the tokens they name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rebinding.experiments.tokens import positions, token_batch
from rebinding.paper.procedure import EARLY
from rebinding.task.boxes import Contains, Move, Operation, Swap
from rebinding.task.chat import Form
from rebinding.task.designs import design
from rebinding.task.prompts import Encoded, Encoder, Prompt, PromptError, aligned, render
from rebinding.task.text import render_raw
from rebinding.task.words import LABELS, OBJECTS

from .stories import prompts
from .tokenizers import DATELESS_TEMPLATE, byte_level, sentence_pieces, word_level

# Positions for train id 0 under the public Llama 3 vocabulary, as given for the published prompts.
PLACES = ("context_box", "context_object", "swap_first", "swap_second", "swap_period", "question_box", "readout")
LLAMA_3: dict[str, tuple[Any, Form, int, list[Any]]] = {
    "raw": (byte_level(), "raw", 59, [[21, 27, 33], [24, 30, 36], 43, 46, 47, 54, 58]),
    "dates": (byte_level(), "llama3", 106, [[63, 69, 75], [66, 72, 78], 85, 88, 89, 96, 105]),
    "no dates": (
        byte_level(template=DATELESS_TEMPLATE), "template", 86, [[43, 49, 55], [46, 52, 58], 65, 68, 69, 76, 85],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("tokenizer", "form", "length", "places"), LLAMA_3.values(), ids=LLAMA_3)
def test_positions_of_the_published_prompt(tokenizer: Any, form: Form, length: int, places: list[Any]) -> None:
    published = design("published")
    encoded = Encoder(tokenizer, form).encode(map(published.prompt, range(600)))
    assert {len(prompt) for prompt in encoded} == {length}
    for prompt in encoded:
        slots = [[prompt.roles[f"{place}[{slot}]"] for slot in range(3)] for place in PLACES[:2]]
        assert [*slots, *(prompt.roles[place] for place in PLACES[2:])] == places


@given(prompt=prompts())
def test_a_role_is_the_token_of_its_word(encoder: Encoder, prompt: Prompt) -> None:
    (encoded,) = encoder.encode([prompt])
    spans = render_raw(prompt).spans
    assert set(spans) <= set(encoded.roles)
    for role, (start, end) in spans.items():
        token = encoder.tokenizer.decode([encoded.ids[encoded.roles[role]]])
        assert token.strip() == render_raw(prompt).text[start:end]
    assert encoded.roles["readout"] == len(encoded) - 1
    assert encoded.ids == tuple(encoder.tokenizer(encoded.text, add_special_tokens=False)["input_ids"])


@given(prompt=prompts(), data=st.data())
def test_changed_word_changes_only_the_token_of_its_role(encoder: Encoder, prompt: Prompt, data: st.DataObject) -> None:
    """The edited story may be an impossible one: what counts is what is written."""
    edited, role = data.draw(edits(prompt))
    original, changed = encoder.encode([prompt, edited])
    assert aligned(original, changed) == (original.roles[role],)
    assert {place: changed.roles[place] for place in render_raw(prompt).spans} == {
        place: original.roles[place] for place in render_raw(prompt).spans
    }


@given(prompt=prompts(maximum=5))
def test_padding_with_the_end_of_turn_token_makes_no_difference(prompt: Prompt) -> None:
    plain, reused = (Encoder(byte_level(pad=pad)).encode([prompt])[0] for pad in ("<|pad|>", "<|eot_id|>"))
    assert (plain.ids, plain.roles) == (reused.ids, reused.roles)
    assert reused.ids.count(Encoder(byte_level()).tokenizer.convert_tokens_to_ids("<|eot_id|>")) == 2


def test_a_prompt_may_end_earlier() -> None:
    """Two tokens early a Llama prompt ends with the blank line behind the assistant's header: as many turns end before
    it. Nothing else moves; and no role may be lost."""
    encoder, story = Encoder(byte_level(), "llama3"), design("published").prompt(0)
    (full,), (short,) = encoder.encode([story]), encoder.encode([story], cut=EARLY)
    ends = encoder.tokenizer.convert_tokens_to_ids("<|eot_id|>")
    assert full.ids.count(ends) == EARLY
    assert short.ids == full.ids[:-EARLY] == tuple(encoder.tokenizer(short.text, add_special_tokens=False)["input_ids"])
    assert short.roles == {**full.roles, "readout": 103}
    assert short.text.endswith("assistant<|end_header_id|>\n\n")
    with pytest.raises(PromptError, match="the readout is to be token 96, and question_box would stand there"):
        encoder.encode([story], cut=9)


FORMS_OF: dict[str, tuple[Any, Form]] = {
    "words raw": (word_level(), "raw"),
    "words template": (word_level(), "template"),
    "bytes raw": (byte_level(), "raw"),
    "bytes template": (byte_level(), "template"),
    "bytes llama3": (byte_level(), "llama3"),
    "pieces raw": (sentence_pieces(), "raw"),
    "pieces template": (sentence_pieces(), "template"),
    "pieces gemma": (sentence_pieces(), "gemma"),
}


@pytest.mark.parametrize(("tokenizer", "form"), FORMS_OF.values(), ids=FORMS_OF)
def test_every_form_puts_one_first_token_before_the_text(tokenizer: Any, form: Form) -> None:
    """The first token stands in the text, once, as the tokenizer's own post-processing would put it."""
    (encoded,) = Encoder(tokenizer, form).encode([design().prompt(0)])
    assert encoded.ids[0] == tokenizer.bos_token_id
    assert encoded.ids.count(tokenizer.bos_token_id) == 1
    assert encoded.text == render(encoded.prompt, form, tokenizer).text


def test_tensors_hold_the_tokens_and_positions_of_each_prompt(encoder: Encoder) -> None:
    stories = design("counterbalanced")
    encoded = encoder.encode(map(stories.prompt, range(36)))
    tokens = token_batch(encoded)
    asked_positions = positions(encoded, "context_asked")
    assert tokens.shape == (36, len(encoded[0]))
    assert tokens.dtype == asked_positions.dtype == torch.long
    words = [encoder.tokenizer.decode([token]).strip() for token in tokens[torch.arange(36), asked_positions].tolist()]
    assert words == [prompt.prompt.question for prompt in encoded]
    assert len(set(asked_positions.tolist())) == 3


def test_unequal_lengths_are_shown_side_by_side(encoder: Encoder) -> None:
    pair = design().tracing(0, "no_swap")
    original, counterfactual = encoder.encode([pair.original, pair.counterfactual])
    for compare in (
        lambda: token_batch([original, original, counterfactual]),
        lambda: aligned(original, counterfactual),
    ):
        with pytest.raises(PromptError, match=f"{len(original)} and {len(counterfactual)} tokens") as error:
            compare()
        lines = str(error.value).splitlines()[1:]
        assert "Swap" in lines[0] or "\\n" in lines[0] or "ĊĊ" in lines[0]
        assert len(lines) == 20
        assert int(lines[0].split()[0]) < original.roles["swap_first"]


def test_a_role_that_a_prompt_lacks_is_named(encoder: Encoder) -> None:
    encoded: list[Encoded] = encoder.encode(map(design("counterbalanced").prompt, range(36)))
    with pytest.raises(PromptError, match="12 of 36 prompts have no role 'swap_asked'; the first of them has context"):
        positions(encoded, "swap_asked")
    with pytest.raises(PromptError, match="at least one"):
        token_batch([])


@st.composite
def edits(draw: st.DrawFn, prompt: Prompt) -> tuple[Prompt, str]:
    """The prompt with one word replaced, and the role whose word that is."""
    story = replace(prompt.story, impossible="ignore")
    written_words = render_raw(prompt).text
    roles = [role for role in render_raw(prompt).spans if role not in ("swap_period", "readout")]
    role = draw(st.sampled_from(roles))
    words = OBJECTS if "object" in role else LABELS
    word = draw(st.sampled_from([word for word in words if f" {word}" not in written_words]))
    if role == "question_box":
        return Prompt(story, word, prompt.focus), role
    if role.startswith("swap"):
        operations = list(story.operations)
        operations[prompt.focus] = _renamed(operations[prompt.focus], role, word)
        return Prompt(replace(story, operations=tuple(operations)), prompt.question, prompt.focus), role
    slot = int(role[:-1].split("[")[1])
    contents = list(story.contents)
    statement = contents[slot]
    contents[slot] = Contains(statement.box, word) if "object" in role else Contains(word, statement.object)
    return Prompt(replace(story, contents=tuple(contents)), prompt.question, prompt.focus), role


def _renamed(operation: Operation, role: str, word: str) -> Operation:
    assert isinstance(operation, Swap | Move)
    names = ("first", "second") if isinstance(operation, Swap) else ("source", "target")
    return replace(operation, **{names[role == "swap_second"]: word})
