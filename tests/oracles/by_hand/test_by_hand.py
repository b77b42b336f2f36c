"""All rows on a plant but those on a search, judged once. A blind sample of every kind of evidence is compared with
full forwards, and every estimate with lines of numpy. Nothing depends on how many prompts are measured together.

What `tests/real/test_by_hand.py` does on a model that learned the task.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from rebinding.evidence import Evidence, OnPrompts, Request
from rebinding.experiments.recheck import differences, is_comparable, is_per_prompt, on_prompt
from rebinding.experiments.workbench import Workbench
from rebinding.surgery import RecordedRun, TorchSurgeon
from tests.everyday import sampled
from tests.oracles.by_hand.estimates import SAME_SUMS, compare_estimates, is_left_out
from tests.oracles.by_hand.judgements import SMALL_N, Judged, Row, ShakingEngine, judged
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
PROMPTS_IN_PART = 2
"""Fewer than the prompts of a claim here, so that each measurement is made in parts."""


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
    missing = [row.id for row in comparisons if row.by_hand is None and not is_left_out(row.id)]
    assert missing == []
    compared = [row for row in comparisons if row.by_hand is not None]
    assert [row for row in compared if row.difference > SAME_SUMS] == []
    rows = sum(row.verdict for row in compared)
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


@contextmanager
def in_parts() -> Iterator[list[int]]:
    """Surgeons take few prompts at once; the numbers of prompts that they record, one a call."""
    record, sizes = TorchSurgeon.record, []

    def note_size(surgeon: TorchSurgeon, tokens: Tensor, **options: Any) -> RecordedRun:
        sizes.append(len(tokens))
        return record(surgeon, tokens, **options)

    assert PROMPTS_IN_PART < SMALL_N
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TorchSurgeon, "record", note_size)
        patch.setattr(TorchSurgeon, "prompts_at_once", lambda surgeon, length: PROMPTS_IN_PART)
        yield sizes


def comparable(case: Judged) -> dict[Request, Evidence]:
    return {request: evidence for request, evidence in case.evidence_by_request.items() if is_comparable(evidence)}


@pytest.fixture(scope="module")
def last_of_class(by_hand: ByHand) -> dict[Request, Evidence]:
    """A request of each class."""
    of_class = {type(request): (request, evidence) for request, evidence in comparable(by_hand.judged).items()}
    assert len(of_class) >= 10
    return dict(of_class.values())


def bench_of(case: Judged, request: Request) -> Workbench:
    """Without the evidence of the case."""
    boxes = request.prompts.boxes if isinstance(request, OnPrompts) else 3
    return Workbench(case.case.session_for(boxes).source.loaded_model)  # type: ignore[attr-defined]  # a workbench


def test_rows_measured_in_parts_are_the_same_in_the_same_order(
    by_hand: ByHand, last_of_class: Mapping[Request, Evidence]
) -> None:
    with in_parts() as sizes:
        for request, evidence in last_of_class.items():
            rows = bench_of(by_hand.judged, request).get(request).rows
            assert np.all(differences(evidence.rows, rows, "float32") <= 1), request.label
    assert sizes.count(PROMPTS_IN_PART) > len(sizes) / 3, "many measurements have more prompts than a part"


def test_a_prompt_alone_gives_the_same_rows(by_hand: ByHand, last_of_class: Mapping[Request, Evidence]) -> None:
    """So `rebinding report --recheck` need not compute all of a request to check one row."""
    alone: set[type[Request]] = set()
    for request, evidence in last_of_class.items():
        if not is_per_prompt(request, evidence):
            continue
        assert isinstance(request, OnPrompts)
        bench, id = bench_of(by_hand.judged, request), request.prompts.ids[-1]
        stated = evidence.rows[evidence.rows["prompt"] == id].reset_index(drop=True)
        rows = bench.get_block(on_prompt(bench.prompts, request, id)).rows
        assert np.all(differences(stated, rows, "float32") <= 1), request.label
        alone.add(type(request))
    assert alone == {type(request) for request in comparable(by_hand.judged)}


@pytest.mark.slow
def test_all_rows_and_verdicts_in_parts_are_the_same(by_hand: ByHand) -> None:
    together = by_hand.judged
    with in_parts():
        apart = judged(NAME)
    assert list(together.evidence_by_request) == list(apart.evidence_by_request)
    assert len(comparable(together)) >= 20
    for request, evidence in comparable(together).items():
        rows = apart.evidence_by_request[request].rows
        assert np.all(differences(evidence.rows, rows, "float32") <= 1), request.label
    verdicts, verdicts_apart = (
        [(row.claim.id, row.judgement.verdict) for row in case.rows] for case in (together, apart)
    )
    assert verdicts == verdicts_apart
