"""A batch as a tree gives the numbers of each prompt alone."""

from __future__ import annotations

import pytest
import torch

from rebinding.learned.exam import answers
from rebinding.learned.lessons import lessons
from rebinding.learned.tree import tree
from rebinding.task.words import Vocabulary
from tests.close import agree, felt
from tests.learned.small import encoder, model
from tests.surgery.models import Family

PROMPTS = encoder().encode(lessons(Vocabulary(), "all", 0, 3, 3))


def test_a_tree_by_hand() -> None:
    found = tree([[5, 6, 7], [5, 6, 8], [5, 6, 7], [9]])
    assert found.ids.tolist() == [[5, 6, 7, 8, 9]]
    assert found.positions.tolist() == [[0, 1, 2, 2, 0]]
    assert found.ends.tolist() == [2, 3, 2, 4]
    sees = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 0, 1, 0], [0, 0, 0, 0, 1]]
    assert found.sees[0, 0].int().tolist() == sees


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3", "qwen3"])
def test_equals_each_prompt_alone(family: Family) -> None:
    tried = model(family)
    with torch.no_grad():
        got = answers(tried, PROMPTS)
        alone = [tried(torch.tensor([one.ids]), use_cache=False).logits[0, -1] for one in PROMPTS]
    want = torch.stack(alone)  # (prompt, vocabulary)
    assert agree(got, want)
    assert felt(want[1:], want[:-1])  # prompts differ, so a tree that mixed them up would be seen


def test_saves_more_than_half() -> None:
    assert 2 * tree([one.ids for one in PROMPTS]).ids.numel() < sum(map(len, PROMPTS))


def test_a_window_shorter_than_the_prompts_is_refused() -> None:
    with pytest.raises(ValueError, match="sliding window of 32"):
        answers(model("gemma2", sliding_window=32), PROMPTS)
