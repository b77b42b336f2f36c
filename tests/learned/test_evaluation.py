"""A batch as a tree gives the numbers of each prompt alone."""

from __future__ import annotations

import pytest
import torch

from rebinding.learned.evaluation import answers, tree
from rebinding.learned.training import Recipe, curriculum
from rebinding.task.words import Vocabulary
from tests.close import agree, is_changed
from tests.families.models import Family
from tests.learned.small import encoder, model

PROMPTS = encoder().encode(curriculum(Vocabulary(), Recipe(stories=3), 3))


def test_a_tree_by_hand() -> None:
    actual = tree([[5, 6, 7], [5, 6, 8], [5, 6, 7], [9]])
    assert actual.ids.tolist() == [[5, 6, 7, 8, 9]]
    assert actual.positions.tolist() == [[0, 1, 2, 2, 0]]
    assert actual.ends.tolist() == [2, 3, 2, 4]
    sees = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 0, 1, 0], [0, 0, 0, 0, 1]]
    assert actual.sees[0, 0].int().tolist() == sees


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3", "qwen3"])
def test_equals_each_prompt_alone(family: Family) -> None:
    network = model(family)
    with torch.no_grad():
        actual = answers(network, PROMPTS)
        single = [network(torch.tensor([prompt.ids]), use_cache=False).logits[0, -1] for prompt in PROMPTS]
    expected = torch.stack(single)  # (prompt, vocabulary)
    assert agree(actual, expected)
    assert is_changed(expected[1:], expected[:-1])  # prompts differ, so a tree that mixed them up would be seen


def test_saves_more_than_half() -> None:
    assert 2 * tree([prompt.ids for prompt in PROMPTS]).ids.numel() < sum(map(len, PROMPTS))


def test_a_window_shorter_than_the_prompts_is_refused() -> None:
    with pytest.raises(ValueError, match="sliding window of 32"):
        answers(model("gemma2", sliding_window=32), PROMPTS)
