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
from tests.oracles.by_hand.estimates import SAME_SUMS, held, left_out
from tests.oracles.by_hand.judgements import Row, ShakingEngine, judged
from tests.oracles.by_hand.recompute import BY_HAND, ByHand, averages, recomputed

PAGE = Path(__file__).parents[3] / "docs" / "verdicts.md"
NAME, SHAKEN = "planted:pointer@llama", "planted:pointer+murmur@gemma3"
"""One as the paper has it, and one whose other objects have logits, where a margin is no logit. Of the second the
evidence is shaken (`judgements.Shaken`), so that what plants leave far apart lies close together."""
FEWEST, PARTS = 100, 200
"""Rows with an estimate by hand, and parts of their sentences; other rows are not applicable to a plant, or invalid."""
HELD_AGAINST: Mapping[tuple[str, str], float] = {
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
    found = recomputed(by_hand, kind, rows=12)
    assert found.rows
    assert not found.wrong


def test_means_are_means_of_full_forwards(by_hand: ByHand) -> None:
    assert max(averages(by_hand).values()) <= 1


@pytest.mark.parametrize("seed", sampled([None, 0]), ids=["measured", "shaken"])
def test_estimates_are_what_the_evidence_says(by_hand: ByHand, seed: int | None) -> None:
    """Every part of a sentence, and not the one alone that the verdict tells."""
    found = held(by_hand.judged if seed is None else judged(SHAKEN, engine=ShakingEngine(seed)))
    assert [one.id for one in found if one.by_hand is None and not left_out(one.id)] == []
    assert [one for one in found if one.by_hand is not None and one.off > SAME_SUMS] == []
    rows = sum(one.verdict and one.by_hand is not None for one in found)
    assert rows >= FEWEST
    assert len(found) - rows >= PARTS


def test_what_estimates_are_held_against(by_hand: ByHand) -> None:
    for (sentence, words), number in HELD_AGAINST.items():
        rows = [row for row in by_hand.judged.rows if row.claim.sentence == sentence]
        found = [one for row in rows for one in row.parts if words in one.part[0]] if words else rows
        against = [one.told.against if isinstance(one, Row) else one.against for one in found]
        assert against == pytest.approx([number] * len(found)), sentence
        assert found, sentence


def test_stories_have_as_many_boxes_as_rows_say(by_hand: ByHand) -> None:
    """Three, but for the rows that say five, or seven."""
    asked = [one.prompts.boxes for one in by_hand.judged.known if isinstance(one, OnPrompts)]
    assert set(asked) == {3, 5, 7}


def test_margins_are_those_on_the_page(by_hand: ByHand) -> None:
    """Of a sentence in parts the page has the margin of one."""
    page = PAGE.read_text()
    _, table, _ = re.split(r"^(?:```|planted:)", page[page.index(f"{NAME}\n") :], maxsplit=2, flags=re.MULTILINE)
    _, head, *lines = table.splitlines()
    first, end = head.index("margin"), head.index(" N ")
    shown = {line.split()[0]: line[first:end].strip() for line in lines if line.startswith("  ")}
    margins = {
        row.claim.id: {f"{one.margin:.3g}" for one in (row.told, *row.parts) if one.margin is not None}
        for row in by_hand.judged.rows
    }
    compared = {id: (shown[id], of) for id, of in margins.items() if shown[id] and id not in FEW_DECIDE}
    assert len(compared) > FEWEST
    assert {id: told for id, told in compared.items() if told[0] not in told[1]} == {}
