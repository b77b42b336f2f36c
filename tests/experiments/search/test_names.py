"""Every token has one name by place, which finds it again; functions move with the question; noise stands in line."""

from __future__ import annotations

from functools import cache

import pytest

from rebinding.experiments.search.pairs import pairs_of
from rebinding.experiments.tokens import positions
from rebinding.planted.tokenizer import build_tokenizer
from rebinding.task.designs import design
from rebinding.task.prompts import Encoded, Encoder, PromptError
from rebinding.task.text import names_by_function, names_by_place, token_at, word_of
from tests.experiments.setup import noise_pairs


@cache
def encoder() -> Encoder:
    return Encoder(build_tokenizer())


def encoded(number: int, boxes: int = 3) -> Encoded:
    (prompt,) = encoder().encode([design("counterbalanced", boxes=boxes).prompt(number)])
    return prompt


@pytest.mark.parametrize("boxes", [3, 5])
def test_names_find_their_tokens(boxes: int) -> None:
    """By place in every prompt of a design, by function in the prompts that have it; words are said."""
    first = encoded(0, boxes)
    names = names_by_place(first.roles, first.pieces)
    assert len(set(names)) == len(first)
    for number in range(12):
        encoded_prompt = encoded(number, boxes)
        assert names_by_place(encoded_prompt.roles, encoded_prompt.pieces) == names
        assert [token_at(name, encoded_prompt.roles) for name in names] == list(range(len(encoded_prompt)))
        for at, name in enumerate(names_by_function(encoded_prompt.roles, names)):
            assert name is None or token_at(name, encoded_prompt.roles) == at
    for text, name in (("contains", "contains@context_box[1]+1"), (".", "swap_period")):
        assert word_of(first.pieces[names.index(name)]) == text
    assert {".@context_object[0]+1", "Box@context_box[0]-1", "readout"} <= set(names)


def test_a_function_is_where_the_question_puts_it() -> None:
    """`contains` of the asked box stands in the asked box's statement; who asks about a bystander has no partner."""
    for number in range(9):
        prompt = encoded(number)
        at = token_at("contains@context_asked+1", prompt.roles)
        assert at is not None
        assert prompt.pieces[at - 1] == prompt.prompt.question
        partner = token_at("Box@swap_partner-1", prompt.roles)
        assert (partner is None) == (prompt.prompt.partner is None)
        assert partner is None or prompt.pieces[partner + 1] == prompt.prompt.partner
    assert token_at("items@nobody-3", encoded(0).roles) is None


def test_noise_statements_stand_for_those_of_the_same_part() -> None:
    """The statement of the box named first stands for that of the box named first; behind the context, place by place;
    what stands before the first difference is the same text."""
    pairs = noise_pairs(encoder(), range(12))
    for clean, noise, match, first in zip(pairs.clean, pairs.noise, pairs.match.tolist(), pairs.first, strict=True):
        operation, counterfactual = clean.prompt.operation, noise.prompt.operation
        for slot, label in enumerate(clean.prompt.story.boxes):
            at = match[clean.roles[f"context_box[{slot}]"]]
            for clean_label, noise_label in (
                (operation.first, counterfactual.first),
                (operation.second, counterfactual.second),
            ):
                assert (noise.pieces[at] == noise_label) == (label == clean_label)
        assert match[clean.roles["swap_first"] - 3 :] == list(range(clean.roles["swap_first"] - 3, len(clean)))
        assert clean.ids[:first] == noise.ids[:first]
        assert match[:first] == list(range(first))
        assert (clean.ids[first], first) != (noise.ids[match[first]], match[first])


def test_strata_are_as_fine_as_the_number_of_prompts_allows() -> None:
    """In a balanced block two prompts or four share order of naming and slots; in 18 order and the answer's slot are
    told apart; in 9 the order alone."""
    for count, strata in ((36, 15), (18, 9), (9, 3)):
        strata_of = noise_pairs(encoder(), range(count)).strata
        assert list(strata_of) == list(range(count))
        assert sorted(set(strata_of.values())) == list(range(strata))


def test_tokens_without_a_name_and_prompts_of_another_form_are_refused() -> None:
    """A circuit's role may be any token that has a name. Four boxes among three are another form."""
    prompts = [encoded(number) for number in range(4)]
    places = positions(prompts, "items@swap_first-3").tolist()
    assert [word_of(prompt.pieces[at]) for prompt, at in zip(prompts, places, strict=True)] == ["items"] * 4
    with pytest.raises(ValueError, match="no role 'items@nowhere-3'"):
        positions(prompts, "items@nowhere-3")
    with pytest.raises(PromptError, match="written alike"):
        pairs_of((0, 1), prompts[:2], [prompts[2], encoded(3, boxes=4)], [[1, 2], [3, 4]])
