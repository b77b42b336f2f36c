"""A request in blocks continues where it stopped, after an exception or Ctrl-C."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

from rebinding.evidence.store import Store
from tests.evidence import toy
from tests.evidence.toy import N, bench_at, powers


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
