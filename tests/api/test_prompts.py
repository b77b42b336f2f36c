"""Prompts and pairs of the public interface, and mistakes in them."""

from __future__ import annotations

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import GPT2Config, GPT2LMHeadModel

import rebinding
from rebinding import Pairs
from rebinding.api.model import check_length
from rebinding.planted.tokenizer import build_tokenizer
from rebinding.task.prompts import PromptError
from tests.api.small import model_of, prompts_of

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


TEXTS = ["Box K contains the boot. Box D contains the rock.", "Box M contains the rock. Box D contains the boot."]


def test_the_tokenizer_of_these_tests_pads() -> None:
    tokenizer = build_tokenizer()
    assert None not in (tokenizer.pad_token_id, tokenizer.eos_token_id)


def test_a_mapping_of_a_tokenizer_is_no_list_of_prompts() -> None:
    model = model_of()
    with pytest.raises(PromptError, match=r"a mapping of input_ids, .*attention_mask.*Give the texts"):
        model.prompts(model.tokenizer(TEXTS, return_tensors="pt"))
    with pytest.raises(PromptError, match=r"rows is a list of mappings.*\[\{\.\.\.\}\]"):
        model.fill("Box {box}", {"box": "K"})


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_is_refused(side: str) -> None:
    model = model_of()
    tokenizer = model.tokenizer
    ids: list[int] = tokenizer(TEXTS[0])["input_ids"]
    padding = [tokenizer.pad_token_id] * 2
    padded = [*ids, *padding] if side == "right" else [*padding, *ids]
    with pytest.raises(PromptError, match=r"prompt 1 (begins|ends) with padding.*padding=False"):
        model.prompts([[*ids, *ids[-2:]], padded])


def test_an_end_token_is_not_the_readout() -> None:
    """A tokenizer that appends one: texts end with their own last token; ids that end so are refused."""
    model, appending = model_of(), model_of()
    tokenizer = appending.tokenizer
    bos, eos = tokenizer.bos_token, tokenizer.eos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A {eos}", special_tokens=[(bos, tokenizer.bos_token_id), (eos, tokenizer.eos_token_id)]
    )
    assert tokenizer(TEXTS[0])["input_ids"][-1] == tokenizer.eos_token_id
    assert torch.equal(appending.prompts(TEXTS).tokens, model.prompts(TEXTS).tokens)
    filled = appending.fill("Box {box} contains the {thing}", [{"box": "K", "thing": "boot"}])
    assert filled.at("thing").tolist() == filled.at("readout").tolist()
    with pytest.raises(PromptError, match="an end token, which would be the readout"):
        appending.prompts(tokenizer(TEXTS)["input_ids"])


def test_prompts_are_chosen_by_numbers_and_masks() -> None:
    prompts = model_of().prompts([[5, 6, 7], [6, 7, 8], [7, 8, 9]], answers=[[1, 2], [2, 3], [3, 4]])
    pairs = Pairs(prompts, prompts[[1, 2, 0]])
    for part in ([0, 2], torch.tensor([0, 2]), torch.tensor([True, False, True]), slice(None, None, 2)):
        assert torch.equal(pairs[part].clean.tokens, prompts.tokens[[0, 2]])
        assert pairs[part].clean.answers.tolist() == [[1, 2], [3, 4]]
        assert torch.equal(pairs[part].noise.tokens, prompts.tokens[[1, 0]])
    with pytest.raises(PromptError, match="one flag for each of 3 prompts; got 2"):
        prompts[[True, False]]
    with pytest.raises(PromptError, match="numbers 0 to 2, a slice or a mask"):
        prompts[[3]]


def test_a_generator_is_a_list_of_prompts() -> None:
    model = model_of()
    assert torch.equal(model.prompts(text for text in TEXTS).tokens, model.prompts(TEXTS).tokens)


def test_words_of_a_name_are_compared_with_the_prompt() -> None:
    """`far@noun+1` is the token after `noun` where it says `far`."""
    model = model_of()
    template = "Box {box} contains the {thing}. Box D contains the {other}."
    prompts = model.fill(template, [{"box": "K", "thing": "boot", "other": "rock"}] * 2)
    assert prompts.at("contains@box+1").tolist() == [3, 3]
    assert prompts.at("token@box+1").tolist() == [3, 3]  # a name of position-free discovery for tokens that differ
    with pytest.raises(PromptError, match=r"no position 'holds@box\+1' \(in prompt 0 that token is 'contains'\)"):
        prompts.at("holds@box+1")
    with pytest.raises(PromptError, match="no position"):
        prompts.at("contains@box-9")
    with pytest.raises(PromptError, match="no prompt has"):
        prompts.having("holds@box+1")


def test_longer_prompts_than_a_model_has_positions_for() -> None:
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 8, "vocab_size": 20, "bos_token_id": 1, "eos_token_id": 1}
    model = GPT2LMHeadModel(GPT2Config(n_positions=16, **sizes))
    check_length(model, 16)
    with pytest.raises(PromptError, match="prompts of 17 tokens: this model has positions for 16"):
        check_length(model, 17)


def test_prompts_and_pairs_are_joined() -> None:
    model = model_of()
    first, second = prompts_of(model), prompts_of(model, first=2)
    both = first + second
    assert both.tokens.tolist() == [*first.tokens.tolist(), *second.tokens.tolist()]
    assert both.answers is not None
    assert both.answers.tolist() == [*first.candidates().tolist(), *second.candidates().tolist()]
    assert both.at("middle").tolist() == [6, 7, 6, 7]
    pairs = Pairs(first, second) + Pairs(second, first)
    assert pairs.clean.tokens.tolist() == both.tokens.tolist()
    assert pairs.noise.tokens.tolist() == (second + first).tokens.tolist()
    assert pairs.match is None
    match = torch.arange(first.length).flip(0).expand(2, -1)
    joined = Pairs(first, second) + Pairs(second, first, match)
    assert joined.match is not None
    assert joined.match.tolist() == [[*range(first.length)]] * 2 + match.tolist()
    with pytest.raises(PromptError, match="prompts with 3 and None answers each"):
        first + model.prompts(second.tokens)
    with pytest.raises(PromptError, match="equal length"):
        first + model.prompts(second.tokens[:, :-1], answers=second.candidates().tolist())
