"""All rows on plants but those on a search: a blind sample of every kind of evidence held against full forwards, and
estimates against lines of numpy.

What `tests/real/test_by_hand.py` does on a model that learned the task.
"""

from __future__ import annotations

import pytest

from rebinding.evidence import Request
from tests.by_hand.estimates import SAME_SUMS, held, left_out
from tests.by_hand.judged import judged
from tests.by_hand.kinds import BY_HAND, ByHand, averages, recomputed

MODELS = ("planted:pointer@llama", "planted:pointer+murmur@gemma3")
"""One as the paper has it, and one whose other objects have logits, where a margin is no logit."""
FEWEST = 100
"""Rows with an estimate by hand on either; the others are not applicable to a plant, or invalid on it."""


@pytest.fixture(scope="module")
def by_hand() -> ByHand:
    return ByHand(judged(MODELS[0]))


@pytest.mark.parametrize("kind", BY_HAND, ids=lambda kind: kind.__name__)
def test_evidence_is_what_full_forwards_give(by_hand: ByHand, kind: type[Request]) -> None:
    found = recomputed(by_hand, kind, rows=12)
    assert found.rows
    assert not found.wrong


def test_means_are_means_of_full_forwards(by_hand: ByHand) -> None:
    assert max(averages(by_hand).values()) <= 1


@pytest.mark.parametrize("name", MODELS)
def test_estimates_are_what_the_evidence_says(by_hand: ByHand, name: str) -> None:
    found = held(by_hand.judged if name == MODELS[0] else judged(name))
    assert [one.id for one in found if one.by_hand is None and not left_out(one.id)] == []
    assert {one.id: (one.told, one.by_hand) for one in found if one.by_hand is not None and one.off > SAME_SUMS} == {}
    assert sum(one.by_hand is not None for one in found) >= FEWEST
