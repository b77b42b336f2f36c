"""Requests in blocks: joined, merged, and continued where they stopped."""

from __future__ import annotations

import gc
import io
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import ref

import pandas as pd
import pytest

from rebinding.evidence import Evidence, EvidenceError
from rebinding.evidence.evidence import cache_by_evidence, merge
from rebinding.evidence.request import describe, join
from rebinding.evidence.store import Store
from tests.evidence import toy
from tests.evidence.toy import POWERS, N, Powers, bench_at, powers


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


def shard(*ids: int, experiment: str = "toy", **settings: Any) -> Evidence:
    return Evidence(experiment, pd.DataFrame({"id": ids}), {"mode": "swap", "n": 2, **settings})


def test_rows_have_the_order_of_the_shards() -> None:
    merged = merge([shard(3, 1), shard(2)])
    assert merged.rows["id"].tolist() == [3, 1, 2]
    assert merged.rows.index.tolist() == [0, 1, 2]
    assert (merged.experiment, merged.settings) == ("toy", {"mode": "swap", "n": 2})


@pytest.mark.parametrize(
    ("other", "names"),
    [
        (shard(2, n=3), ["n"]),
        (shard(2, mode="none", n=3), ["mode", "n"]),
        (shard(2, block=1), ["block"]),
        (shard(2, experiment="other"), ["experiment"]),
        (shard(2, experiment="other", n=3), ["experiment", "n"]),
    ],
)
def test_shards_that_differ_are_refused(other: Evidence, names: list[str]) -> None:
    for shards in ([shard(1), other], [other, shard(1)], [shard(1), shard(4), other]):
        with pytest.raises(EvidenceError) as excinfo:
            merge(shards)
        assert str(excinfo.value).endswith(f"they differ in: {', '.join(names)}")


def test_merging_no_shards_is_refused() -> None:
    with pytest.raises(EvidenceError, match="nothing to merge"):
        merge([])


def evidence(*values: float) -> Evidence:
    return Evidence("made up", pd.DataFrame({"value": values}), {})


def test_a_function_runs_once_per_evidence_and_arguments() -> None:
    """Equal tables are different evidence; positional and keyword arguments are distinguished."""
    calls: list[tuple[int, float]] = []

    @cache_by_evidence
    def count_above(evidence: Evidence, bound: float, shift: float = 0.0) -> int:
        calls.append((id(evidence), bound + shift))
        return int((evidence.rows["value"] > bound + shift).sum())

    first, second = evidence(1.0, 2.0), evidence(1.0, 2.0)
    assert [
        count_above(first, 0.0),
        count_above(first, 1.5),
        count_above(first, 0.0),
        count_above(first, 0.0, shift=1.5),
    ] == [2, 1, 2, 1]
    assert count_above(second, 0.0) == 2
    assert calls == [(id(first), 0.0), (id(first), 1.5), (id(first), 1.5), (id(second), 0.0)]


def test_an_error_is_not_cached() -> None:
    calls = []

    @cache_by_evidence
    def fails(evidence: Evidence) -> None:
        calls.append(evidence)
        raise ValueError("no rows")

    empty = evidence()
    for _ in range(2):
        with pytest.raises(ValueError, match="no rows"):
            fails(empty)
    assert len(calls) == 2


def test_cached_results_are_freed_with_their_evidence() -> None:
    @cache_by_evidence
    def table(evidence: Evidence) -> pd.DataFrame:
        return evidence.rows * 2

    short_lived = evidence(1.0)
    doubled = ref(table(short_lived))
    assert doubled() is not None
    del short_lived
    gc.collect()
    assert doubled() is None


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ids that are computed."""
    ids: list[int] = []
    monkeypatch.setattr(toy, "begin_block", ids.extend)
    return ids


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), MemoryError("full")], ids=["ctrl-c", "error"])
def test_only_missing_blocks_are_computed(tmp_path: Path, stop: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []

    def begin_block(ids: Sequence[int]) -> None:
        if 7 in ids:
            raise stop
        computed.extend(ids)

    monkeypatch.setattr(toy, "begin_block", begin_block)
    first = bench_at(tmp_path)
    with pytest.raises(type(stop)):
        first.get(powers(first))
    assert computed == [0, 1, 2, 3, 4, 5]
    computed.clear()
    monkeypatch.setattr(toy, "begin_block", computed.extend)
    second = bench_at(tmp_path)
    joined = second.get(powers(second))
    assert computed == [6, 7, 8, 9]
    unstored = bench_at(None)
    pd.testing.assert_frame_equal(joined.rows, unstored.get(powers(unstored)).rows)
    computed.clear()
    third = bench_at(tmp_path)
    third.get(powers(third))
    assert computed == []


def test_only_blocks_are_stored(tmp_path: Path, computed: list[int]) -> None:
    """A block is the request on some of its prompts, and can be requested by itself."""
    bench = bench_at(tmp_path)
    request = powers(bench)
    bench.get(request)
    blocks = bench.prompts.blocks(request)
    assert [block.n for block in blocks] == [3, 3, 3, 1]
    stored = {(entry.experiment, entry.key) for entry in Store(tmp_path).entries()}
    assert stored == {bench.address(block) for block in blocks}
    computed.clear()
    part = powers(bench, range(3, 6))
    assert part == blocks[1]
    assert bench.get(part).rows["power"].tolist() == [9, 16, 25]
    assert computed == []


def test_more_prompts_reuse_the_blocks_that_are_there(tmp_path: Path, computed: list[int]) -> None:
    bench = bench_at(tmp_path)
    bench.get(powers(bench))
    computed.clear()
    bench.get(powers(bench, range(12)))
    assert computed == [9, 10, 11]


@pytest.mark.parametrize(
    "change",
    [{"exponent": 3}, {"design": "counterbalanced"}, {"ids": range(1, N + 1)}],
    ids=lambda change: next(iter(change)),
)
def test_other_requests_have_other_blocks(tmp_path: Path, change: dict, computed: list[int]) -> None:
    bench = bench_at(tmp_path)
    bench.get(powers(bench))
    computed.clear()
    bench.get(powers(bench, **change))
    assert computed == list(change.get("ids", range(N)))


def test_other_model_finds_no_blocks(tmp_path: Path, computed: list[int]) -> None:
    for loaded_model in ("toy", "other"):
        bench = bench_at(tmp_path, loaded_model=loaded_model)
        computed.clear()
        bench.get(powers(bench))
        assert computed == list(range(N))


class Terminal(io.StringIO):
    """A terminal for a progress bar."""

    def isatty(self) -> bool:
        return True


def progress_output(root: Path, screen: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    """The output while ten prompts are computed."""
    bench = bench_at(root)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", screen)
        bench.get(powers(bench))
    return screen.getvalue()


def test_the_bar_counts_missing_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stored blocks count as done from the start, so that the remaining time is that of the others."""
    bench = bench_at(tmp_path)
    bench.get(powers(bench, range(6)))
    first, *_ = progress_output(tmp_path, Terminal(), monkeypatch).strip("\r").split("\r")
    assert first.startswith("powers:  50%")
    assert "2/4" in first


def test_progress_bar_needs_a_terminal_and_missing_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert progress_output(tmp_path, io.StringIO(), monkeypatch) == ""
    assert progress_output(tmp_path, Terminal(), monkeypatch) == ""
