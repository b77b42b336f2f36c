"""An experiment in blocks goes on where it stopped: after an exception, after Ctrl-C, after being killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pytest

from rebinding.evidence import Evidence
from rebinding.evidence.blocks import Tick, in_blocks
from rebinding.evidence.store import Shelf, Store

ITEMS = list(range(10))


def shelf_at(root: Path) -> Shelf:
    return Store(root).shelf(subject="toy", dtype="float32")


def run(
    shelf: Shelf | None, seen: list[int], items: Sequence[int] = ITEMS, *, stop: BaseException | None = None
) -> Evidence:
    """Square the items in blocks of three, noting which are computed; `stop` is raised at item 7."""

    def compute(part: Sequence[int], tick: Tick) -> Evidence:
        if stop is not None and 7 in part:
            raise stop
        seen.extend(part)
        tick(len(part))
        return Evidence("toy", pd.DataFrame({"item": part, "square": [item**2 for item in part]}), {})

    return in_blocks(
        items, compute, experiment="toy", size=3, cost=lambda item: 1, content=str, shelf=shelf, progress=False
    )


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), MemoryError("full")], ids=["ctrl-c", "error"])
def test_only_what_is_missing_is_computed(tmp_path: Path, stop: BaseException) -> None:
    first: list[int] = []
    with pytest.raises(type(stop)):
        run(shelf_at(tmp_path), first, stop=stop)
    assert first == [0, 1, 2, 3, 4, 5]
    second: list[int] = []
    whole = run(shelf_at(tmp_path), second)
    assert second == [6, 7, 8, 9]
    pd.testing.assert_frame_equal(whole.rows, run(None, []).rows)
    third: list[int] = []
    run(shelf_at(tmp_path), third)
    assert third == []


def test_more_items_reuse_the_blocks_that_are_there(tmp_path: Path) -> None:
    run(shelf_at(tmp_path), [])
    seen: list[int] = []
    run(shelf_at(tmp_path), seen, items=range(12))
    assert seen == [9, 10, 11]


def test_another_subject_finds_nothing(tmp_path: Path) -> None:
    run(shelf_at(tmp_path), [])
    seen: list[int] = []
    run(Store(tmp_path).shelf(subject="other", dtype="float32"), seen)
    assert seen == ITEMS


def test_the_bar_counts_what_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Blocks that are there count as done from the start, so that the remaining time is that of the rest."""
    run(shelf_at(tmp_path), [], items=ITEMS[:6])

    def compute(part: Sequence[int], tick: Tick) -> Evidence:
        tick(len(part))
        return Evidence("toy", pd.DataFrame({"item": part, "square": [item**2 for item in part]}), {})

    common: dict[str, Callable[..., object]] = {"cost": lambda item: 1, "content": str}
    in_blocks(ITEMS, compute, experiment="toy", size=3, shelf=shelf_at(tmp_path), progress=True, **common)
    shown = capsys.readouterr().err
    assert "toy:  60%" in shown
    assert "100%" in shown


SCRIPT = """
import sys, time
from pathlib import Path
import pandas as pd
from rebinding.evidence import Evidence
from rebinding.evidence.blocks import in_blocks
from rebinding.evidence.store import Store

def compute(part, tick):
    if 7 in part:
        print("working", flush=True)
        time.sleep(60)
    return Evidence("toy", pd.DataFrame({"item": part, "square": [item ** 2 for item in part]}), {})

shelf = Store(Path(sys.argv[1])).shelf(subject="toy", dtype="float32")
in_blocks(range(10), compute, experiment="toy", size=3, cost=lambda item: 1, content=str, shelf=shelf, progress=False)
"""


def test_killed_in_the_middle(tmp_path: Path) -> None:
    """No chance to clean up: finished blocks are there, the lock is free, the rest is computed."""
    here = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], cwd=here, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        os.kill(process.pid, signal.SIGKILL)
    seen: list[int] = []
    whole = run(shelf_at(tmp_path), seen)
    assert seen == [6, 7, 8, 9]
    assert whole.rows["square"].tolist() == [item**2 for item in ITEMS]
