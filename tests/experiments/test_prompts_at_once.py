"""Evidence and verdicts do not depend on how many prompts are recorded and edited together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from rebinding.evidence import Evidence, OnPrompts, Request
from rebinding.experiments.recheck import differences, is_comparable, is_per_prompt, on_prompt
from rebinding.experiments.workbench import Workbench
from rebinding.surgery import RecordedRun, TorchSurgeon
from tests.oracles.by_hand.judgements import SMALL_N, Judged, judged

NAME = "planted:pointer@llama"
PARTS = 2
"""Fewer than the prompts of a claim here, so that each measurement is made in parts."""


@contextmanager
def in_parts() -> Iterator[list[int]]:
    """Surgeons take few prompts at once; the numbers of prompts that they record, one a call."""
    record, sizes = TorchSurgeon.record, []

    def note_size(surgeon: TorchSurgeon, tokens: Tensor, **options: Any) -> RecordedRun:
        sizes.append(len(tokens))
        return record(surgeon, tokens, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TorchSurgeon, "record", note_size)
        patch.setattr(TorchSurgeon, "prompts_at_once", lambda surgeon, length: PARTS)
        yield sizes


@pytest.fixture(scope="module")
def together() -> Judged:
    """All rows with all prompts of a claim at once."""
    assert PARTS < SMALL_N
    return judged(NAME)


def comparable(case: Judged) -> dict[Request, Evidence]:
    return {request: evidence for request, evidence in case.evidence_by_request.items() if is_comparable(evidence)}


def first_and_last(case: Judged) -> dict[Request, Evidence]:
    """Two requests of each class."""
    of_class: dict[type[Request], list[Request]] = {}
    for request in comparable(case):
        of_class.setdefault(type(request), []).append(request)
    assert len(of_class) >= 10
    return {request: case.evidence_by_request[request] for some in of_class.values() for request in (some[0], some[-1])}


def bench_of(case: Judged, request: Request) -> Workbench:
    source = case.case.session_for(request.prompts.boxes if isinstance(request, OnPrompts) else 3).source
    assert isinstance(source, Workbench)
    return source


def test_rows_measured_in_parts_are_the_same_in_the_same_order(together: Judged) -> None:
    with in_parts() as sizes:
        for request, evidence in first_and_last(together).items():
            rows = Workbench(bench_of(together, request).loaded_model).get(request).rows
            assert np.all(differences(evidence.rows, rows, "float32") <= 1), request.label
    assert sizes.count(PARTS) > len(sizes) / 3, "many measurements have more prompts than a part"


def test_a_prompt_alone_gives_the_same_rows(together: Judged) -> None:
    """So `rebinding report --recheck` need not compute all of a request to check one row."""
    alone: set[type[Request]] = set()
    for request, evidence in first_and_last(together).items():
        if not is_per_prompt(request, evidence):
            continue
        assert isinstance(request, OnPrompts)
        bench, id = bench_of(together, request), request.prompts.ids[-1]
        stated = evidence.rows[evidence.rows["prompt"] == id].reset_index(drop=True)
        rows = bench.get_block(on_prompt(bench.prompts, request, id)).rows
        assert np.all(differences(stated, rows, "float32") <= 1), request.label
        alone.add(type(request))
    assert alone == {type(request) for request in comparable(together)}


@pytest.mark.slow
def test_all_rows_and_verdicts_in_parts_are_the_same(together: Judged) -> None:
    with in_parts():
        apart = judged(NAME)
    assert list(together.evidence_by_request) == list(apart.evidence_by_request)
    assert len(comparable(together)) >= 20
    for request, evidence in comparable(together).items():
        assert np.all(differences(evidence.rows, apart.evidence_by_request[request].rows, "float32") <= 1), (
            request.label
        )
    verdicts, verdicts_apart = (
        [(row.claim.id, row.judgement.verdict) for row in case.rows] for case in (together, apart)
    )
    assert verdicts == verdicts_apart
