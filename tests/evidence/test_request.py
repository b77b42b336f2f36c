"""Requests in blocks: joined, merged, and continued where they stopped."""

from __future__ import annotations

import gc
import io
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
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
from tests.evidence.stores import content
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
    rows = pd.DataFrame({"prompt": [0], "powers": [0]})
    with pytest.raises(EvidenceError, match=r"missing columns \['power'\], unknown columns \['powers'\]"):
        describe(request, Evidence(POWERS.name, rows, {}))


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


def test_a_function_runs_once_per_evidence_and_arguments() -> None:
    """Equal tables are different evidence; positional and keyword arguments are distinguished. An error is not cached,
    and a result is freed with its evidence."""
    calls: list[tuple[int, float]] = []

    @cache_by_evidence
    def above(evidence: Evidence, bound: float, shift: float = 0.0) -> pd.DataFrame:
        calls.append((id(evidence), bound + shift))
        if bound > 2:
            raise ValueError("no rows")
        return evidence.rows[evidence.rows["id"] > bound + shift]

    first, second = shard(1, 2), shard(1, 2)
    calls_made: list[tuple[int, dict[str, int]]] = [(0, {}), (1, {}), (0, {}), (0, {"shift": 1})]
    assert [len(above(first, bound, **options)) for bound, options in calls_made] == [2, 1, 2, 1]
    assert len(above(second, 0)) == 2
    assert calls == [(id(first), 0), (id(first), 1), (id(first), 1), (id(second), 0)]
    for _ in range(2):
        with pytest.raises(ValueError, match="no rows"):
            above(first, 3)
    assert len(calls) == 6
    result = ref(above(second, 0))
    assert result() is not None
    del second
    gc.collect()
    assert result() is None


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


@pytest.mark.parametrize(
    ("model", "change", "expected"),
    [
        ("toy", {"ids": range(12)}, [9, 10, 11]),
        ("toy", {"ids": range(1, N + 1)}, list(range(1, N + 1))),
        ("toy", {"exponent": 3}, list(range(N))),
        ("toy", {"design": "counterbalanced"}, list(range(N))),
        ("other", {}, list(range(N))),
    ],
)
def test_only_equal_blocks_are_reused(
    tmp_path: Path, model: str, change: dict[str, Any], expected: list[int], computed: list[int]
) -> None:
    """More prompts reuse the blocks that are there. Other prompts, settings, designs and models have others."""
    bench = bench_at(tmp_path)
    bench.get(powers(bench))
    computed.clear()
    bench = bench_at(tmp_path, loaded_model=model)
    bench.get(powers(bench, **change))
    assert computed == expected


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


def test_the_progress_bar_counts_missing_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stored blocks count as done from the start, so that the remaining time is that of the others. There is no bar
    outside of a terminal, or where nothing is missing."""
    bench = bench_at(tmp_path / "a")
    bench.get(powers(bench, range(6)))
    first, *_ = progress_output(tmp_path / "a", Terminal(), monkeypatch).strip("\r").split("\r")
    assert first.startswith("powers:  50%")
    assert "2/4" in first
    assert progress_output(tmp_path / "a", Terminal(), monkeypatch) == ""
    assert progress_output(tmp_path / "b", io.StringIO(), monkeypatch) == ""


def test_a_clock_that_is_set_back_changes_no_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour back at every look, with the bar that shows the remaining time: the bytes of any other run."""
    progress_output(tmp_path / "whole", Terminal(), monkeypatch)
    looks = count(4_000_000_000, -3600)
    for name in ("time.time", "tqdm.std.time"):
        monkeypatch.setattr(name, lambda: float(next(looks)))
    progress_output(tmp_path / "store", Terminal(), monkeypatch)
    assert next(looks) <= 4_000_000_000 - 2 * 3600, "nobody has looked at the clock twice"
    assert content(tmp_path / "store") == content(tmp_path / "whole")
