"""Joining of blocks: the result has the request in its settings, and blocks with other settings are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from rebinding.evidence import Evidence, EvidenceError
from rebinding.evidence.request import describe, join
from tests.evidence.toy import POWERS, Powers, bench_at, powers


def make_evidence(block: Any, **settings: Any) -> Evidence:
    """The evidence of a block, as in the store."""
    ids = block.prompts.ids
    rows = pd.DataFrame({"prompt": ids, "power": [number**2 for number in ids]})
    return describe(block, Evidence(POWERS.name, rows, {"exponent": 2, **settings}))


@pytest.fixture(scope="module")
def request_and_blocks() -> tuple[Powers, list[Any]]:
    bench = bench_at(None)
    request = powers(bench)
    return request, bench.prompts.blocks(request)


def test_evidence_has_its_request_in_its_settings(request_and_blocks: tuple[Powers, list[Any]]) -> None:
    """A block has its own request; the joined evidence has the full one, with the rows in its own order."""
    request, blocks = request_and_blocks
    parts = [make_evidence(block) for block in blocks]
    for block, part in zip(blocks, parts, strict=True):
        assert part.settings["request"] == block.plain
        assert part.settings["key"] == block.key != request.key
    joined = join(request, parts)
    settings = {"request": request.plain, "facets": request.facets, "key": request.key}
    assert joined.settings == {"exponent": 2, **settings}
    assert joined.rows["prompt"].tolist() == list(request.prompts.ids)
    assert joined.experiment == POWERS.name
    backwards = join(request, parts[::-1])
    assert backwards.rows["prompt"].tolist() == list(request.prompts.ids)


def test_rows_come_prompt_by_prompt(request_and_blocks: tuple[Powers, list[Any]]) -> None:
    """Rows of a prompt keep their order; a number that is no id comes last."""
    _, (block, *_) = request_and_blocks
    first, second, third = block.prompts.ids
    rows = pd.DataFrame({"prompt": [third, -1, second, third, first, -2, first], "power": range(7)})
    described = describe(block, Evidence(POWERS.name, rows, {}))
    assert described.rows["power"].tolist() == [4, 6, 2, 0, 3, 1, 5]


def test_a_request_in_one_block_is_that_block(request_and_blocks: tuple[Powers, list[Any]]) -> None:
    _, (block, *_) = request_and_blocks
    evidence = make_evidence(block)
    assert join(block, [evidence]) is evidence


def test_blocks_with_other_settings_are_refused(request_and_blocks: tuple[Powers, list[Any]]) -> None:
    """Only the prompts may differ; the error names any other difference."""
    request, blocks = request_and_blocks
    parts = [make_evidence(block) for block in blocks]
    odd = make_evidence(blocks[-1], surgeon="other")
    with pytest.raises(EvidenceError, match=r"they differ in: surgeon$"):
        join(request, [*parts[:-1], odd])
    with pytest.raises(EvidenceError, match=r"they differ in: experiment$"):
        join(request, [*parts[:-1], replace(parts[-1], experiment="other")])
    with pytest.raises(EvidenceError, match="nothing to merge"):
        join(request, [])


def test_columns_of_another_kind_are_refused(request_and_blocks: tuple[Powers, list[Any]]) -> None:
    request, _ = request_and_blocks
    with pytest.raises(EvidenceError, match=r"missing columns \['power'\]"):
        describe(request, Evidence(POWERS.name, pd.DataFrame({"prompt": [0]}), {}))


def test_blocks_without_prompts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_at(None)
    request = powers(bench)
    monkeypatch.setattr(Powers, "size", 0)
    with pytest.raises(ValueError, match="blocks of 0 prompts; give at least one"):
        bench.prompts.blocks(request)
