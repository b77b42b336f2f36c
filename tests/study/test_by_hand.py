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

NAME, SHAKEN = "planted:pointer@llama", "planted:pointer+murmur@gemma3"
"""One as the paper has it, and one whose other objects have logits, where a margin is no logit. Of the second the
evidence is shaken (`tests.by_hand.judged.Shaken`), so that what plants leave far apart lies close together."""
FEWEST, PARTS = 100, 200
"""Rows with an estimate by hand, and parts of their sentences; other rows are not applicable to a plant, or invalid."""


@pytest.fixture(scope="module")
def by_hand() -> ByHand:
    return ByHand(judged(NAME))


@pytest.mark.parametrize("kind", BY_HAND, ids=lambda kind: kind.__name__)
def test_evidence_is_what_full_forwards_give(by_hand: ByHand, kind: type[Request]) -> None:
    found = recomputed(by_hand, kind, rows=12)
    assert found.rows
    assert not found.wrong


def test_means_are_means_of_full_forwards(by_hand: ByHand) -> None:
    assert max(averages(by_hand).values()) <= 1


@pytest.mark.parametrize("seed", [None, 0], ids=["measured", "shaken"])
def test_estimates_are_what_the_evidence_says(by_hand: ByHand, seed: int | None) -> None:
    """Every part of a sentence, and not the one alone that the verdict tells."""
    found = held(by_hand.judged if seed is None else judged(SHAKEN, shaken=seed))
    assert [one.id for one in found if one.by_hand is None and not left_out(one.id)] == []
    assert [one for one in found if one.by_hand is not None and one.off > SAME_SUMS] == []
    rows = sum(one.verdict and one.by_hand is not None for one in found)
    assert rows >= FEWEST
    assert len(found) - rows >= PARTS
