"""Prompts from texts, token ids, templates and stories, and what is refused."""

from __future__ import annotations

import pytest
import torch

import rebinding
from rebinding import Pairs
from rebinding.task.prompts import PromptError
from tests.api.small import model_of

TEMPLATE = "Box {box} contains the {thing}. Box D contains the {other}."
ROWS = [{"box": "K", "thing": "boot", "other": "rock"}, {"box": "M", "thing": "rock", "other": "boot"}]


def test_fields_of_a_template_name_the_last_tokens_of_their_words() -> None:
    model = model_of()
    filled = model.fill(TEMPLATE, ROWS, answers=("{thing}", "{other}"))
    ids = filled.tokens
    for row, words in enumerate(ROWS):
        for name, word in words.items():
            assert model.tokenizer.decode(ids[row, filled.at(name)[row]]).strip() == word
    assert filled.positions == ["box", "thing", "other", "readout"]
    assert filled.at("readout").tolist() == [filled.length - 1] * 2
    right, wrong = filled.answers[:, 0], filled.answers[:, 1]
    assert [model.tokenizer.decode(token) for token in right] == ["boot", "rock"]
    assert torch.equal(right, wrong.flip(0))
    assert torch.equal(model.prompts(filled.texts).tokens, ids)
    assert torch.equal(model.prompts(ids).tokens, ids)
    assert torch.equal(filled[1:].tokens, ids[1:])


def test_positions_count_from_both_ends() -> None:
    prompts = model_of().prompts([[5, 6, 7, 8], [6, 7, 8, 9]], positions={"second": 1, "own": [2, -4]})
    assert prompts.at("second").tolist() == [1, 1]
    assert prompts.at("own").tolist() == [2, 0]
    assert prompts.at(-1).tolist() == prompts.at("readout").tolist() == [3, 3]


def test_texts_can_be_read_back() -> None:
    """The text of a story begins with a special token, which is not added twice."""
    model = rebinding.load("planted:pointer")
    stories = model.stories(rebinding.design("published", model), 3)
    assert torch.equal(model.prompts(stories.texts).tokens, stories.tokens)
    assert [len(prompt) for prompt in stories] == [1, 1, 1]
    assert torch.equal(stories[-1].tokens, stories.tokens[2:])


def test_stories_have_their_roles_and_strata() -> None:
    model = rebinding.load("planted:pointer")
    pairs = model.story_pairs(rebinding.design("counterbalanced", model), 12, first=24)
    prompts = model.stories(rebinding.design("counterbalanced", model), 12, first=24)
    assert torch.equal(prompts.tokens, pairs.clean.tokens)
    assert torch.equal(prompts.candidates(), pairs.clean.candidates())
    assert len(set(prompts.strata)) > 3
    for number, encoded in enumerate(prompts.tokenized):
        right = model.tokenizer.decode(prompts.candidates()[number, 0]).strip()
        assert right == encoded.prompt.answer
    partner = prompts.having("context_partner")
    assert 0 < len(partner) < 12
    with pytest.raises(PromptError, match=r"prompts have no position 'context_partner'.*prompts.having"):
        prompts.at("context_partner")


def test_errors_say_what_was_given_and_what_to_do() -> None:
    model = model_of()
    same = model.prompts([[5, 6, 7]])
    for make, message in (
        (lambda: model.prompts([]), "no prompts given"),
        (lambda: model.prompts("Box K"), r"Write \['Box K'\]"),
        (lambda: model.prompts([[5, 6, 7], [5, 6]]), "prompts 0 and 1 have 3 and 2 tokens"),
        (lambda: model.prompts([[5, 6]], positions={"readout": 0}), "give another name"),
        (lambda: model.prompts([[5, 6]], positions={"at": 2}), "token 2 of prompt 0, which has tokens 0 to 1"),
        (lambda: model.prompts([[5, 6]], positions={"at": [0, 1]}), "one for each of 1 prompts; got 2"),
        (lambda: model.prompts([[5, 6]], answers=[["boot rock"]]), "is 2 tokens; an answer is one token"),
        (lambda: model.prompts([[5, 6]], answers=[["boot", "boot"]]), "not different tokens"),
        (lambda: model.prompts([[5, 6]], answers=[["boot"], ["rock"]]), "for 1 prompts"),
        (lambda: model.prompts([[5, 6], [6, 5]], answers=["KD", "DK"]), "a row for each prompt"),
        (lambda: model.prompts([[5, 6], [6, 5]], answers=["boot", "rock"]), "a row for each prompt"),
        (lambda: model.prompts([[5, 6]], answers=[[5, 10**6]]), "1000000 is no token"),
        (lambda: model.prompts([[5, 6]], answers=[["quux", "rock"]]), "'quux' is no token"),
        (lambda: model.prompts(["Box quux"]), "does not know every word"),
        (lambda: model.prompts([5, 6]), "a table of token ids"),
        (lambda: model.fill("Box {a:.4} contains", [{"a": "K"}]), "without a format"),
        (lambda: model.fill("Box {a}", [{"a": ""}]), "not empty"),
        (lambda: model.fill("Box {a}", [{"a": "K"}], answers="{a}"), "a list of templates"),
        (lambda: same.having("early"), "no prompt has"),
        (lambda: same.at(1.5), "a name or an index"),
        (lambda: Pairs([[5]], [[6]]), "two Prompts"),
        (lambda: model.fill("Box {a} {a}", [{"a": "K"}]), "a name of its own"),
        (lambda: model.fill("Box {a}", [{"b": "K"}]), "has no word for the field 'a'"),
        (lambda: Pairs(same, same), "one prompt twice"),
        (lambda: Pairs(same, model.prompts([[5, 6, 8], [5, 6, 9]])), "1 clean prompts and 2 noise prompts"),
        (lambda: Pairs(same, model.prompts([[5, 6, 8, 9]])), "two prompts have 3 and 4 tokens"),
        (lambda: same.at("early"), "no position 'early'. Every prompt has readout"),
    ):
        with pytest.raises(PromptError, match=message):
            make()
