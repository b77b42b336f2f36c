"""Rows of the claims on a model that learned the task, held against slow computations that share nothing.

The claims' own code judges all rows on few prompts. Then a blind sample of every kind of evidence is computed again by
full forwards of the library's eager model, and every estimate from the evidence by lines of numpy. Few prompts decide
hardly anything; that the numbers are right does not depend on how many they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rebinding.evidence import Request
from rebinding.learned.shelf import BASES, parse
from tests.oracles.by_hand.estimates import SAME_SUMS, compare_estimates, is_left_out
from tests.oracles.by_hand.judgements import judged
from tests.oracles.by_hand.recompute import BY_HAND, GATES, ByHand, averages, recomputed

ROWS = 12
"""Of a kind of evidence, or one of each request, where there are more of these."""


@pytest.fixture(scope="module")
def by_hand(smollm2_file: Path) -> Iterator[ByHand]:
    """All rows, of the circuit that the search finds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(BASES["smollm2"].variable, str(smollm2_file))
        yield ByHand(judged("learned:smollm2", parse("smollm2").folder / "all-positions.json"))


@pytest.mark.parametrize("kind", BY_HAND, ids=lambda kind: kind.__name__)
def test_evidence_is_what_full_forwards_give(by_hand: ByHand, kind: type[Request]) -> None:
    comparison = recomputed(by_hand, kind, ROWS)
    print(
        f"{kind.__name__}: {comparison.rows} rows, {comparison.worst:.3f} of what rounding allows, "
        f"{comparison.undecided} undecided"
    )
    assert comparison.rows
    assert not comparison.wrong


def test_means_are_means_of_full_forwards(by_hand: ByHand) -> None:
    differences = averages(by_hand)
    assert differences
    assert max(differences.values()) <= 1


def test_every_kind_of_evidence_has_a_recomputation(by_hand: ByHand) -> None:
    assert {type(request) for request in by_hand.judged.evidence_by_request} == {*BY_HAND, *GATES}


def test_estimates_are_what_the_evidence_says(by_hand: ByHand) -> None:
    compared = [row for row in compare_estimates(by_hand.judged) if row.by_hand is not None]
    rows = sum(row.verdict for row in compared)
    print(f"{rows} of {len(by_hand.judged.rows)} rows have an estimate by hand, and {len(compared) - rows} parts")
    assert [row for row in compared if row.difference > SAME_SUMS] == []


def test_no_row_with_an_estimate_is_forgotten(by_hand: ByHand) -> None:
    assert [
        row.id for row in compare_estimates(by_hand.judged) if row.by_hand is None and not is_left_out(row.id)
    ] == []
