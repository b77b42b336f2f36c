"""Models that learned: the adapter means to peft what it means here, and its card can be found again."""

from __future__ import annotations

import copy

import pytest
import torch
from peft import PeftModel

from rebinding.learned import card
from rebinding.learned.exam import mark, papers
from rebinding.learned.shelf import parse
from rebinding.subjects import Subject
from rebinding.world.words import Vocabulary
from tests.close import agree, felt

SHIPPED = parse("smollm2")
FEW = 18


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft asks for it
def test_peft_opens_the_adapter_and_computes_the_same(smollm2: Subject, learned: Subject) -> None:
    base = copy.deepcopy(smollm2.model)
    base.set_attn_implementation("eager")
    theirs = PeftModel.from_pretrained(base, SHIPPED.folder).eval()
    prompts = [drawn.prompt(1) for drawn in papers(Vocabulary()).values()]
    with torch.no_grad():
        for one in learned.encoder().encode(prompts):
            ids = torch.tensor([one.ids])
            got = learned.model(ids, use_cache=False).logits[0, -1]
            assert agree(got, theirs(input_ids=ids, use_cache=False).logits[0, -1])
            assert felt(got, smollm2.model(ids, use_cache=False).logits[0, -1])


def test_it_does_the_task_and_the_base_does_not(smollm2: Subject, learned: Subject) -> None:
    """The first prompts of each design again: with at least as many right as the card leaves room for."""
    said = card.read(SHIPPED.folder)
    for name, drawn in papers(Vocabulary()).items():
        prompts = [drawn.prompt(number) for number in range(FEW)]
        wrong = said.marks[name].n - said.marks[name].right
        assert mark(learned.model, learned.encoder(), prompts).right >= FEW - wrong
    swaps = [papers(Vocabulary())["published"].prompt(number) for number in range(FEW)]
    assert mark(smollm2.model, smollm2.encoder(), swaps).right < FEW * 2 / 3


def test_the_subject_says_what_it_is(smollm2: Subject, learned: Subject) -> None:
    assert smollm2.weights == "dequantised from Q4_1 and Q8_0"
    assert learned.weights == f"dequantised from Q4_1 and Q8_0, with the adapter {SHIPPED.folder.name}"
    assert learned.fingerprint != smollm2.fingerprint
    anatomy = learned.anatomy
    assert (anatomy.n_layers, anatomy.n_heads, anatomy.n_kv_heads) == (30, 9, 3)
