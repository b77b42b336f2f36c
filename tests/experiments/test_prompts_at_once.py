"""Evidence and verdicts do not depend on how many prompts are recorded and edited together."""

from __future__ import annotations

import numpy as np
import pytest

from rebinding.experiments.recheck import differences, is_comparable
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


def test_verdicts_are_the_same(together: Judged, in_parts: Judged) -> None:
    words = [[(row.claim.id, row.judgement.verdict) for row in case.rows] for case in (together, in_parts)]
    assert words[0] == words[1]
