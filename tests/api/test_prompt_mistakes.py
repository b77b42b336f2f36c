"""Prompts that would give a number without a word: each is refused, or gives the right number."""

from __future__ import annotations

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import GPT2Config, GPT2LMHeadModel

from rebinding import Pairs
from rebinding.api.model import check_length
from rebinding.planted.tokenizer import build_tokenizer
from rebinding.task.prompts import PromptError
from tests.api.small import model_of

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
