"""Claims about the prompts of the paper's generator."""

from __future__ import annotations

from collections import Counter

from rebinding.task.boxes import Swap
from rebinding.task.designs import design

IDS = range(288)


def test_published_prompts_always_ask_for_slot_one() -> None:
    """Every published prompt asks about the box in slot 0, and its answer stands in slot 1."""
    prompts = [design("published").prompt(number) for number in IDS]
    assert {(prompt.query_slot, prompt.answer_slot) for prompt in prompts} == {(0, 1)}


def test_published_prompts_name_the_partner_first() -> None:
    """The swap sentence names the partner first, so its label stands before that of the asked box."""
    prompts = [design("published").prompt(number) for number in IDS]
    swaps = [operation for prompt in prompts for operation in prompt.story.operations if isinstance(operation, Swap)]
    assert [swap.second for swap in swaps] == [prompt.question for prompt in prompts]


def test_counterbalanced_prompts_ask_for_every_slot_equally() -> None:
    """Asked slot and answer slot are crossed: the first says nothing about the second beyond the task itself."""
    balanced = design("counterbalanced")
    prompts = [balanced.prompt(number) for number in range(balanced.block * 4)]
    assert len(set(Counter(prompt.answer_slot for prompt in prompts).values())) == 1
    assert len(set(Counter((prompt.query_slot, prompt.answer_slot) for prompt in prompts).values())) == 1


def test_rotation_keeps_the_answer_and_fresh_words_keep_the_slots() -> None:
    """Neither published noise changes both the word and the slot; the independent one does."""
    published, second = design("published"), design("partner_second")
    rotated, fresh = ([published.noise(number, kind) for number in IDS] for kind in ("rotation", "fresh"))
    assert all(pair.original.answer == pair.counterfactual.answer for pair in rotated)
    assert all(pair.original.answer != pair.counterfactual.answer for pair in fresh)
    assert all(pair.original.answer_slot == pair.counterfactual.answer_slot for pair in fresh)
    pairs = [second.noise(number, "independent") for number in IDS]
    assert all(pair.original.answer != pair.counterfactual.answer for pair in pairs)
    assert all(pair.original.answer_slot != pair.counterfactual.answer_slot for pair in pairs)
