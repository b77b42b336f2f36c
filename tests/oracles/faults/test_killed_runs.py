"""Runs killed without cleaning up and then finished have the bytes of an undisturbed run, and leave no other file."""

from __future__ import annotations

from typing import Any

import pytest

from tests.oracles.faults.processes import run_module


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    outcomes: dict[str, Any] = run_module("killed_runs", tmp_path_factory.mktemp("killed"))
    return outcomes


def test_kill_at_every_step_of_a_write_loses_nothing(seen: dict[str, Any]) -> None:
    for outcome in seen["steps"]:
        assert outcome["again"] == 0, "it waited for a dead process, or failed"
        assert outcome["files"] == seen["undisturbed"]
        assert not outcome["parts left"]
    *killed, ended = seen["steps"]
    assert not ended["killed"]
    for left in ("parts", "without note", "locks"):
        assert any(outcome[left] for outcome in killed), f"no kill left {left}"


def test_of_ten_processes_that_want_a_shard_one_computes_it(seen: dict[str, Any]) -> None:
    assert seen["crowd"]["codes"] == [0] * 10
    assert seen["crowd"]["log"].count("computed") == 1
