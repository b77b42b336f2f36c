"""Evidence and verdicts do not depend on how many prompts are recorded and edited together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import Tensor

from rebinding.evidence import OnPrompts, Request
from rebinding.experiments.recheck import differences, is_comparable, is_per_prompt, on_prompt
from rebinding.experiments.workbench import Workbench
from rebinding.surgery import RecordedRun, TorchSurgeon
from tests.oracles.by_hand.judgements import SMALL_N, Judged, judged

NAME = "planted:pointer@llama"
PARTS = 2
"""Fewer than the prompts of a claim here, so that each measurement is made in parts."""


def count_recordings(patch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of prompts that surgeons are asked to record, one a call."""
    record, sizes = TorchSurgeon.record, []

    def note_size(surgeon: TorchSurgeon, tokens: Tensor, **options: Any) -> RecordedRun:
        sizes.append(len(tokens))
        return record(surgeon, tokens, **options)

    patch.setattr(TorchSurgeon, "record", note_size)
    return sizes


@pytest.fixture(scope="module")
def cases() -> tuple[Judged, Judged]:
    """All rows with all prompts of a claim at once, and in parts."""
    with pytest.MonkeyPatch.context() as patch:
        sizes_together = count_recordings(patch)
        together = judged(NAME)
    with pytest.MonkeyPatch.context() as patch:
        sizes_in_parts = count_recordings(patch)
        patch.setattr(TorchSurgeon, "prompts_at_once", lambda surgeon, length: PARTS)
        in_parts = judged(NAME)
    assert len(sizes_in_parts) > 1.2 * len(sizes_together), "many measurements have more prompts than a part"
    return together, in_parts


def test_rows_are_the_same_in_the_same_order(cases: tuple[Judged, Judged]) -> None:
    assert PARTS < SMALL_N
    together, in_parts = cases
    assert list(together.evidence_by_request) == list(in_parts.evidence_by_request)
    assert sum(map(is_comparable, together.evidence_by_request.values())) >= 20
    for request, evidence in together.evidence_by_request.items():
        other = in_parts.evidence_by_request[request]
        if is_comparable(evidence):
            assert np.all(differences(evidence.rows, other.rows, "float32") <= 1), request.label


def test_a_prompt_alone_gives_the_same_rows(cases: tuple[Judged, Judged]) -> None:
    """So `rebinding report --recheck` need not compute all of a request to check one row."""
    together, _ = cases
    alone: set[type[Request]] = set()
    for request, evidence in together.evidence_by_request.items():
        if not (is_comparable(evidence) and is_per_prompt(request, evidence)):
            continue
        assert isinstance(request, OnPrompts)
        bench = together.case.session_for(request.prompts.boxes).source
        assert isinstance(bench, Workbench)
        id = request.prompts.ids[-1]
        stated = evidence.rows[evidence.rows["prompt"] == id].reset_index(drop=True)
        rows = bench.get_block(on_prompt(bench.prompts, request, id)).rows
        assert np.all(differences(stated, rows, "float32") <= 1), request.label
        alone.add(type(request))
    whole = {type(request) for request, evidence in together.evidence_by_request.items() if is_comparable(evidence)}
    assert len(whole) >= 10
    assert whole == alone


def test_verdicts_are_the_same(cases: tuple[Judged, Judged]) -> None:
    words = [[(row.claim.id, row.judgement.verdict) for row in case.rows] for case in cases]
    assert words[0] == words[1]
