"""Evidence and verdicts do not depend on how many prompts are recorded and edited together."""

from __future__ import annotations

import numpy as np
import pytest

from rebinding.evidence import OnPrompts, Request
from rebinding.experiments.recheck import differences, is_comparable, is_per_prompt, on_prompt
from rebinding.experiments.workbench import Workbench
from rebinding.surgery import TorchSurgeon
from tests.oracles.by_hand.judgements import SMALL_N, Judged, judged

NAME = "planted:pointer@llama"
PARTS = 2
"""Fewer than the prompts of a claim here, so that each measurement is made in parts."""


@pytest.fixture(scope="module")
def together() -> Judged:
    return judged(NAME)


@pytest.fixture(scope="module")
def in_parts() -> Judged:
    lengths: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TorchSurgeon, "prompts_at_once", lambda surgeon, length: lengths.append(length) or PARTS)
        result = judged(NAME)
    assert lengths, "no measurement has used the patched number"
    return result


def test_rows_are_the_same_in_the_same_order(together: Judged, in_parts: Judged) -> None:
    assert PARTS < SMALL_N
    assert list(together.evidence_by_request) == list(in_parts.evidence_by_request)
    changed = 0
    for request, evidence in together.evidence_by_request.items():
        other = in_parts.evidence_by_request[request]
        if is_comparable(evidence):
            assert np.all(differences(evidence.rows, other.rows, "float32") <= 1), request.label
        changed += not evidence.rows.equals(other.rows)
    assert changed, "two batch sizes round differently somewhere: equal rows mean that both runs used the same parts"


def test_a_prompt_alone_gives_the_same_rows(together: Judged) -> None:
    """So `rebinding report --recheck` need not compute all of a request to check one row."""
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
    assert whole == alone


def test_verdicts_are_the_same(together: Judged, in_parts: Judged) -> None:
    words = [[(row.claim.id, row.judgement.verdict) for row in case.rows] for case in (together, in_parts)]
    assert words[0] == words[1]
