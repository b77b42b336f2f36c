"""Runs killed without cleaning up and then finished have the bytes of an undisturbed run, and leave no other file.

    python -m tests.evidence.test_killed_runs FOLDER

kills a run before its first operation on a file of its store, finishes it, then another before the second operation,
and so on until one comes to its end. Then ten processes want one shard at once. What was seen is printed as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rebinding.evidence.store import Note, Store
from tests.evidence.stores import content, fill, shards
from tests.processes import fork, run_module, wait_for_child

CROWD, PATIENCE = 10, 20
"""Processes that compete, and seconds after which a run that waits for a dead process is ended."""


def start(root: Path, before: Callable[[], object]) -> int:
    """A run of two shards in a process of its own; how it ended."""

    def act() -> int:
        before()
        fill(root, ["activations", "note"])
        return 0

    return wait_for_child(fork(act))


def die_at(root: Path, step: int) -> None:
    """From now on the process kills itself before its operation number `step` on something in a folder."""
    count = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event in ("open", "os.mkdir", "os.rename", "os.remove") and str(root) in str(arguments[:2]):
            if count == step:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1

    sys.addaudithook(watch)


def kill_at_step(root: Path, step: int, undisturbed: dict[str, bytes]) -> dict[str, Any]:
    """What a killed run leaves behind, and what there is when the same run was taken up again."""
    outcome: dict[str, Any] = {
        "killed": start(root, lambda: die_at(root, step)) == -signal.SIGKILL,
        "without note": sum(not path.with_suffix(".sha256").exists() for path in shards(root)),
        "parts": len(list(root.rglob("*.part"))),
        "locks": len(list(root.rglob("*.lock"))),
    }
    again = start(root, lambda: signal.alarm(PATIENCE))
    return {**outcome, "again": again, "is as undisturbed": content(root) == undisturbed}


def compete(folder: Path) -> dict[str, Any]:
    """Ten processes want the same shard, which is computed when all have begun: how they end, and what they did."""
    gate, go = os.pipe()
    log = folder / "log"

    def note(text: str) -> None:
        with log.open("a") as file:
            file.write(f"{text}\n")

    def compute() -> Note:
        note("computed")
        while log.read_text().count("begun") < CROWD:
            os.sched_yield()
        return Note("made once")

    def act() -> int:
        os.close(go)
        os.read(gate, 1)
        note("begun")
        return int(Store(folder / "crowd").remember(Note, "toy", "key", compute) != Note("made once"))

    children = [fork(act) for _ in range(CROWD)]
    os.close(go)
    return {"codes": [wait_for_child(child) for child in children], "log": log.read_text().split()}


def main(folder: Path) -> None:
    start(folder / "whole", lambda: None)
    undisturbed, outcomes = content(folder / "whole"), list[dict[str, Any]]()
    assert len(shards(folder / "whole")) == 2
    while not outcomes or (outcomes[-1]["killed"] and outcomes[-1]["again"] == 0):
        outcomes.append(kill_at_step(folder / f"step-{len(outcomes)}", len(outcomes), undisturbed))
    print(json.dumps({"steps": outcomes, "crowd": compete(folder)}))


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    outcomes: dict[str, Any] = run_module("tests.evidence.test_killed_runs", tmp_path_factory.mktemp("killed"))
    return outcomes


def test_a_kill_at_any_step_of_a_write_loses_nothing(seen: dict[str, Any]) -> None:
    for outcome in seen["steps"]:
        assert outcome["again"] == 0, "it waited for a dead process, or failed"
        assert outcome["is as undisturbed"], "a shard is lost or changed, or a temporary file is left"
    *killed, ended = seen["steps"]
    assert not ended["killed"]
    for left in ("parts", "without note", "locks"):
        assert any(outcome[left] for outcome in killed), f"no kill left {left}"


def test_of_ten_processes_that_want_a_shard_one_computes_it(seen: dict[str, Any]) -> None:
    assert seen["crowd"]["codes"] == [0] * CROWD
    assert seen["crowd"]["log"].count("computed") == 1


if __name__ == "__main__":
    main(Path(sys.argv[1]))
