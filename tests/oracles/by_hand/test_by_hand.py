"""All rows on plants but those on a search: a blind sample of every kind of evidence held against full forwards, and
estimates against lines of numpy.

What `tests/real/test_by_hand.py` does on a model that learned the task.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from rebinding.evidence import OnPrompts, Request
from tests.everyday import sampled
from tests.oracles.by_hand.estimates import SAME_SUMS, compare_estimates, is_left_out
from tests.oracles.by_hand.judgements import Row, ShakingEngine, judged
from tests.oracles.by_hand.recompute import BY_HAND, ByHand, averages, recomputed

PAGE = Path(__file__).parents[3] / "docs" / "verdicts.md"
NAME, SHAKEN = "planted:pointer@llama", "planted:pointer+murmur@gemma3"
"""One as the paper has it, and one whose other objects have logits, where a margin is no logit. Of the second the
evidence is shaken (`judgements.Shaken`), so that what plants leave far apart lies close together."""
FEWEST, PARTS = 100, 200
"""Rows with an estimate by hand, and parts of their sentences; other rows are not applicable to a plant, or invalid."""
BOUNDARIES: Mapping[tuple[str, str], float] = {
    ("beyond.static_and_bystander", "answers"): 1 / 3,
    ("beyond.mass", ""): 1 / 4,
    ("circuit.e_prime", "answers without E"): 1 / 3,
    ("circuit.not_a_floor", "the model misses"): 1 - 0.9,
    ("circuit.three_to_ten_percent", ""): (0.03 + 0.10) / 2,
    ("beyond.random_logits", "q"): 0.9,
    ("beyond.random_logits", "k_both"): 0.9,
    ("robust.random_directions", "q"): 0.9,
    ("robust.random_directions", "k_both"): 0.9,
    ("tracing.boxes_emerge_after_swap", "readout after"): 1 / 2,
    ("tracing.object_direct", "the readout in later layers"): 1 / 2,
    ("tracing.pointer_before_payload", ""): 1 / 2,
}
"""What a row, or the parts whose names have these words, is held against, where it is neither nothing nor printed: one
of three objects, one of four tokens, the middle of a range, nine draws of ten, most prompts."""
FEW_DECIDE = {"beyond.many_boxes"}
"""Of so few prompts the gates of these let none be judged."""


@pytest.fixture(scope="module")
def by_hand() -> ByHand:
    return ByHand(judged(NAME))


@pytest.mark.parametrize("kind", BY_HAND, ids=lambda kind: kind.__name__)
def test_evidence_is_what_full_forwards_give(by_hand: ByHand, kind: type[Request]) -> None:
    comparison = recomputed(by_hand, kind, rows=12)
    assert comparison.rows
    assert not comparison.wrong


def test_means_are_means_of_full_forwards(by_hand: ByHand) -> None:
    assert max(averages(by_hand).values()) <= 1


@pytest.mark.parametrize("seed", sampled([None, 0]), ids=["measured", "shaken"])
def test_estimates_are_what_the_evidence_says(by_hand: ByHand, seed: int | None) -> None:
    """Every part of a sentence, and not the one alone that the verdict tells."""
    comparisons = compare_estimates(by_hand.judged if seed is None else judged(SHAKEN, engine=ShakingEngine(seed)))
    assert [
        comparison.id for comparison in comparisons if comparison.by_hand is None and not is_left_out(comparison.id)
    ] == []
    assert [
        comparison for comparison in comparisons if comparison.by_hand is not None and comparison.difference > SAME_SUMS
    ] == []
    rows = sum(comparison.verdict and comparison.by_hand is not None for comparison in comparisons)
    assert rows >= FEWEST
    assert len(comparisons) - rows >= PARTS


def test_estimates_are_compared_with_the_declared_margins(by_hand: ByHand) -> None:
    for (sentence, words), number in BOUNDARIES.items():
        rows = [row for row in by_hand.judged.rows if row.claim.sentence == sentence]
        parts = [part for row in rows for part in row.parts if words in part.part[0]] if words else rows
        against = [part.judgement.against if isinstance(part, Row) else part.against for part in parts]
        assert against == pytest.approx([number] * len(parts)), sentence
        assert parts, sentence


def test_stories_have_as_many_boxes_as_rows_say(by_hand: ByHand) -> None:
    """Three, but for the rows that say five, or seven."""
    boxes = [request.prompts.boxes for request in by_hand.judged.evidence_by_request if isinstance(request, OnPrompts)]
    assert set(boxes) == {3, 5, 7}


def test_margins_are_those_on_the_page(by_hand: ByHand) -> None:
    """Of a sentence in parts the page has the margin of one."""
    page = PAGE.read_text()
    _, table, _ = re.split(r"^(?:```|planted:)", page[page.index(f"{NAME}\n") :], maxsplit=2, flags=re.MULTILINE)
    _, head, *lines = table.splitlines()
    first, end = head.index("margin"), head.index(" N ")
    printed = {line.split()[0]: line[first:end].strip() for line in lines if line.startswith("  ")}
    margins = {
        row.claim.id: {f"{verdict.margin:.3g}" for verdict in (row.judgement, *row.parts) if verdict.margin is not None}
        for row in by_hand.judged.rows
    }
    compared = {id: (printed[id], margin) for id, margin in margins.items() if printed[id] and id not in FEW_DECIDE}
    assert len(compared) > FEWEST
    assert {id: pair for id, pair in compared.items() if pair[0] not in pair[1]} == {}
