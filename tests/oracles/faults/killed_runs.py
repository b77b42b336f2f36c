"""Run by tests: forks runs, kills them, finishes them. A fork costs milliseconds, where a process costs seconds.

    python -m tests.oracles.faults.killed_runs FOLDER WORK TRIES SEED

WORK is `blocks` (forty small shards, so that a kill hits a write), `planted` (`small_run.py`) or `steps`: killed at
the first operation on a file of the store, then at the second, and so on, until the run comes to its end. What was
seen is printed as JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

from rebinding.evidence import Evidence
from tests.oracles.faults.stores import content
from tests.oracles.faults.toy_run import blocks

Run: TypeAlias = Callable[[Path], object]

SOONER = 0.7
"""The machine may be busier while the time is taken than afterwards."""


def two(root: Path) -> Evidence:
    return blocks(root, 2)


def start(run: Run, root: Path, before: Callable[[], None] = lambda: None) -> int:
    """A run in a process of its own; returns its number."""
    child = os.fork()
    if child:
        return child
    try:
        before()
        run(root)
        os._exit(0)
    except BaseException as error:
        print(f"{error!r}", file=sys.stderr)
        os._exit(1)


def wait_for_child(child: int) -> int:
    """How a process ended: 0, or the signal that ended it as a negative number."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def count_leftovers(root: Path) -> dict[str, int]:
    """What a killed run leaves behind."""
    shards = list(root.rglob("*.parquet"))
    return {
        "shards": len(shards),
        "without note": sum(not path.with_suffix(".sha256").exists() for path in shards),
        "parts": len(list(root.rglob("*.part"))),
    }


def finished(run: Run, root: Path, complete: Mapping[str, bytes]) -> list[str]:
    """Take the run up again; what is wrong then."""
    code = wait_for_child(start(run, root))
    faults = {
        f"finishing ended with {code}": code != 0,
        "other bytes than an undisturbed run": content(root) != complete,
        "temporary files are left": bool(list(root.rglob("*.part"))),
    }
    return [name for name, wrong in faults.items() if wrong]


def kill_at_random(run: Run, folder: Path, n_tries: int, seed: int) -> list[dict[str, Any]]:
    """Killed at moments drawn from the time that a run takes; a run that ended sooner says that it takes less."""
    begin, dice = time.monotonic(), Random(seed)
    assert wait_for_child(start(run, folder / "whole")) == 0
    duration, complete = time.monotonic() - begin, content(folder / "whole")
    outcomes = []
    for number in range(n_tries):
        root = folder / f"killed-{number}"
        child = start(run, root)
        time.sleep(dice.uniform(0, duration))
        os.kill(child, signal.SIGKILL)
        code = wait_for_child(child)
        if code == 0:
            duration *= SOONER
        outcomes.append({"code": code, **count_leftovers(root), "wrong": finished(run, root, complete)})
        shutil.rmtree(root, ignore_errors=True)
    return outcomes


def kill_at_every_step(folder: Path) -> list[dict[str, Any]]:
    """Killed before every single thing that it does with the files of its store."""
    assert wait_for_child(start(two, folder / "whole")) == 0
    complete = content(folder / "whole")
    outcomes: list[dict[str, Any]] = []
    while not outcomes or outcomes[-1]["code"] != 0:
        root, step = folder / f"step-{len(outcomes)}", len(outcomes)
        code = wait_for_child(start(two, root, lambda root=root, step=step: die_at(root, step)))  # type: ignore[misc]
        outcomes.append({"code": code, **count_leftovers(root), "wrong": finished(two, root, complete)})
    return outcomes


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


def main(folder: Path, work: str, n_tries: int, seed: int) -> None:
    if work == "steps":
        outcomes = kill_at_every_step(folder)
    elif work == "blocks":
        outcomes = kill_at_random(blocks, folder, n_tries, seed)
    else:
        from tests.oracles.faults import small_run  # with torch's models, which the others do not need

        small_run.plan()
        outcomes = kill_at_random(small_run.run, folder, n_tries, seed)
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
