"""Some rows on a plant, one at least for every kind of evidence, held against full forwards and lines of numpy.

What `tests/real/test_by_hand.py` does for all rows on a model that learned the task.
"""

from __future__ import annotations

import pytest

from rebinding.evidence import Request
from tests.by_hand.estimates import SAME_SUMS, held, left_out
from tests.by_hand.judged import judged
from tests.by_hand.kinds import BY_HAND, ByHand, averages, recomputed

ROWS = (
    "circuit.a_attends_to_object",
    "beyond.interchange",
    "beyond.necessary",
    "beyond.static_and_bystander",
    "binding.q_redirects",
    "circuit.beats_random",
    "circuit.e_prime",
    "circuit.three_to_ten_percent",
    "circuit.pruned_as_stated",
    "circuit.chain.B_q_A",
    "roles.b_raises_pointer",
    "tracing.reference_box_not_from_context",
    "tracing.object_direct",
    "tracing.readout_over_swap_period",
)


@pytest.fixture(scope="module")
def by_hand() -> ByHand:
    return ByHand(judged("planted:pointer@llama", only=ROWS))


@pytest.mark.parametrize("kind", BY_HAND, ids=lambda kind: kind.__name__)
def test_evidence_is_what_full_forwards_give(by_hand: ByHand, kind: type[Request]) -> None:
    found = recomputed(by_hand, kind, rows=12)
    assert found.rows
    assert not found.wrong


def test_means_are_means_of_full_forwards(by_hand: ByHand) -> None:
    assert max(averages(by_hand).values()) <= 1


def test_estimates_are_what_the_evidence_says(by_hand: ByHand) -> None:
    found = held(by_hand.judged)
    assert {one.id for one in found} == set(ROWS)
    assert [one.id for one in found if one.by_hand is None and not left_out(one.id)] == []
    assert {one.id: (one.told, one.by_hand) for one in found if one.by_hand is not None and one.off > SAME_SUMS} == {}
