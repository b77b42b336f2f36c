"""Run by tests, in a process that can be forked in milliseconds: runs that are killed, and processes that compete.

    python -m tests.oracles.faults.killed_runs FOLDER

Kills a run before its first operation on a file of its store, finishes it, then another before the second operation,
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

from rebinding.evidence.store import Note, Store
from tests.oracles.faults.processes import fork, wait_for_child
from tests.oracles.faults.stores import blocks, content

CROWD, PATIENCE = 10, 20
"""Processes that compete, and seconds after which a run that waits for a dead process is ended."""


def start(root: Path, before: Callable[[], object]) -> int:
    """A run of two shards in a process of its own; how it ended."""

    def act() -> int:
        before()
        blocks(root, 2)
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


def kill_at_step(root: Path, step: int) -> dict[str, Any]:
    """What a killed run leaves behind, and what there is when the same run was taken up again."""
    code = start(root, lambda: die_at(root, step))
    shards = list(root.rglob("*.parquet"))
    left = {
        "killed": code == -signal.SIGKILL,
        "without note": sum(not path.with_suffix(".sha256").exists() for path in shards),
        "parts": len(list(root.rglob("*.part"))),
        "locks": len(list(root.rglob("*.lock"))),
    }
    again = start(root, lambda: signal.alarm(PATIENCE))
    files = {name: shard.hex() for name, shard in content(root).items()}
    return {**left, "again": again, "files": files, "parts left": len(list(root.rglob("*.part")))}


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
    undisturbed = {name: shard.hex() for name, shard in content(folder / "whole").items()}
    outcomes: list[dict[str, Any]] = []
    while not outcomes or (outcomes[-1]["killed"] and outcomes[-1]["again"] == 0):
        outcomes.append(kill_at_step(folder / f"step-{len(outcomes)}", len(outcomes)))
    print(json.dumps({"undisturbed": undisturbed, "steps": outcomes, "crowd": compete(folder)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
