"""Killed without a chance to clean up, then finished: the bytes of a run that nobody disturbed, and nothing left."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.oracles.faults.toy_run import BLOCKS

ROOT = Path(__file__).parents[3]


def killed(folder: Path, work: str, tries: int) -> list[dict[str, Any]]:
    """What a process of its own saw when it killed runs and finished them."""
    command = [sys.executable, "-m", "tests.oracles.faults.killed_runs", str(folder), work, str(tries), "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def well(found: list[dict[str, Any]]) -> None:
    """Every one was finished, and many were killed before they had come to their end: how many, a clock decides."""
    assert not [one for one in found if one["wrong"]]
    assert {one["code"] for one in found} <= {-signal.SIGKILL, 0}
    assert sum(one["code"] == -signal.SIGKILL for one in found) >= len(found) / 4


def test_at_every_step_of_a_write(tmp_path: Path) -> None:
    found = killed(tmp_path, "steps", 0)
    well(found)
    assert found[-1]["code"] == 0
    assert any(one["parts"] for one in found)
    assert any(one["without note"] for one in found)


def test_while_shards_are_written(tmp_path: Path) -> None:
    found = killed(tmp_path, "blocks", 8)
    well(found)
    assert any(0 < one["shards"] < BLOCKS for one in found)


@pytest.mark.slow
@pytest.mark.parametrize(("work", "tries"), [("blocks", 50), ("planted", 50)])
def test_at_fifty_moments(work: str, tries: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = killed(tmp_path, work, tries)
    well(found)
    with capsys.disabled():
        amid = sum(one["parts"] + one["without note"] > 0 for one in found)
        ended = sum(one["code"] == 0 for one in found)
        print(f"\n{work}: {tries} kills, {amid} amid a write, {ended} after the end; 0 other bytes, 0 files left")
