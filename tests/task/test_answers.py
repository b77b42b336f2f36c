"""Answer tokens: ours is the real next token, one and distinct; the published rules are available by name."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebinding.task.designs import design
from rebinding.task.prompts import Encoder, PromptError, is_single_token
from rebinding.task.words import OBJECTS

from .tokenizers import byte_level


@given(word=st.sampled_from(OBJECTS), prompt_id=st.integers(0, 10_000))
def test_the_answer_token_is_the_one_that_follows_a_whole_prompt(encoder: Encoder, word: str, prompt_id: int) -> None:
    (encoded,) = encoder.encode([design(split="none").prompt(prompt_id)])
    expected = encoder.tokenizer(f"{encoded.text} {word}", add_special_tokens=False)["input_ids"]
    assert expected == [*encoded.ids, encoder.answer_token(word)]


def test_all_published_objects_have_answer_tokens_of_their_own(encoder: Encoder) -> None:
    tokens = encoder.answer_tokens(OBJECTS)
    assert len(set(tokens)) == len(OBJECTS)
    assert [encoder.tokenizer.decode([token]).strip() for token in tokens] == list(OBJECTS)


def test_the_published_rules_differ_in_the_blank() -> None:
    """Bytes: ` shell` and `shell` are two tokens. The spaced one is ours and experiment 1's."""
    encoder = Encoder(byte_level())
    spaced, unspaced = (encoder.tokenizer.convert_tokens_to_ids(token) for token in ("Ġshell", "shell"))
    assert encoder.answer_token("shell") == encoder.answer_token("shell", "exp1_spaced") == spaced
    assert encoder.answer_token("shell", "exp34_unspaced") == unspaced
    assert encoder.alias_tokens("shell") == {spaced, unspaced}


def test_spaced_form_is_used_where_the_colon_merges_with_the_word() -> None:
    """As Llama 3 has it for some objects: `:` and the first letter become one token, which is no continuation."""
    tokenizer = copy.deepcopy(byte_level())
    tokenizer.add_tokens([":shell"])
    encoder = Encoder(tokenizer)
    spaced, unspaced = (tokenizer.convert_tokens_to_ids(token) for token in ("Ġshell", "shell"))
    assert encoder.answer_token("shell", "exp34_unspaced") == encoder.answer_token("shell") == spaced
    assert encoder.alias_tokens("shell") == {spaced, unspaced}


def test_published_rules_take_first_pieces_and_may_confuse_words() -> None:
    encoder = Encoder(byte_level())
    assert encoder.answer_token("shellfishes", "exp1_spaced") == encoder.answer_token("shellfishbone", "exp1_spaced")
    with pytest.raises(PromptError, match="'shellfishes' and 'shellfishbone' have the same answer token"):
        encoder.answer_tokens(("shellfishes", "shellfishbone"), "exp1_spaced")
    assert len(encoder.alias_tokens("shellfishes") & encoder.alias_tokens("shellfishbone")) > 0


def test_a_word_of_several_tokens_is_no_answer_and_is_filtered(encoder: Encoder) -> None:
    assert not is_single_token(encoder.tokenizer, "hammock")
    assert all(is_single_token(encoder.tokenizer, word) for word in OBJECTS)
    with pytest.raises(PromptError, match="'hammock' is not one known token after 'Answer:' but "):
        encoder.answer_token("hammock")


def test_the_same_candidate_twice_is_refused(encoder: Encoder) -> None:
    with pytest.raises(PromptError, match="'egg' and 'egg' have the same answer token"):
        encoder.answer_tokens(("egg", "fan", "egg"))


def test_an_unknown_rule_is_named(encoder: Encoder) -> None:
    with pytest.raises(PromptError, match="no answer rule 'spaced'; the rules are continuation, exp1_spaced"):
        encoder.answer_token("egg", "spaced")  # type: ignore[arg-type]  # what the test is about
