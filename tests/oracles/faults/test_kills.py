"""Runs killed without cleaning up and then finished have the bytes of an undisturbed run, and leave no other file."""

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


def killed(folder: Path, work: str, n_tries: int) -> list[dict[str, Any]]:
    """What a process of its own saw when it killed runs and finished them."""
    command = [sys.executable, "-m", "tests.oracles.faults.killed_runs", str(folder), work, str(n_tries), "1"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    outcomes: list[dict[str, Any]] = json.loads(result.stdout)
    return outcomes


def well(outcomes: list[dict[str, Any]]) -> None:
    """Every one was finished, and many were killed before they had come to their end: how many, a clock decides."""
    assert not [outcome for outcome in outcomes if outcome["wrong"]]
    assert {outcome["code"] for outcome in outcomes} <= {-signal.SIGKILL, 0}
    assert sum(outcome["code"] == -signal.SIGKILL for outcome in outcomes) >= len(outcomes) / 4


def test_kill_at_every_step_of_a_write_loses_nothing(tmp_path: Path) -> None:
    outcomes = killed(tmp_path, "steps", 0)
    well(outcomes)
    assert outcomes[-1]["code"] == 0
    assert any(outcome["parts"] for outcome in outcomes)
    assert any(outcome["without note"] for outcome in outcomes)


def test_kill_while_shards_are_written_loses_nothing(tmp_path: Path) -> None:
    outcomes = killed(tmp_path, "blocks", 8)
    well(outcomes)
    assert any(0 < outcome["shards"] < BLOCKS for outcome in outcomes)


@pytest.mark.slow
@pytest.mark.parametrize(("work", "n_tries"), [("blocks", 50), ("planted", 50)])
def test_kill_at_fifty_moments_loses_nothing(
    work: str, n_tries: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = killed(tmp_path, work, n_tries)
    well(outcomes)
    with capsys.disabled():
        n_amid = sum(outcome["parts"] + outcome["without note"] > 0 for outcome in outcomes)
        n_ended = sum(outcome["code"] == 0 for outcome in outcomes)
        print(f"\n{work}: {n_tries} kills, {n_amid} amid a write, {n_ended} after the end; 0 other bytes, 0 files left")
