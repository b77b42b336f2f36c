"""Run by tests: whole commands, each in a fork, to which something happens at a moment; then the same once more.

    python -m tests.oracles.faults.interrupted_commands FOLDER COMMAND EVENT MOMENT [MOMENT ...]

COMMAND is `claims` or `discover`; EVENT is `interrupt`, `fill_disk` or `full`.

`full` needs a small file system, such as one that `unshare -Urm` and `mount -t tmpfs -o size=16m` make.
What was said, the status, and what lay in the store and beside it before and after are printed as JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from rebinding.cli import commands
from rebinding.planted import build
from tests.oracles.faults import moments
from tests.oracles.faults.killed_runs import wait_for_child
from tests.oracles.faults.moments import Moment
from tests.oracles.faults.stores import content

HEAVY = ("hypothesis", "rebinding.report.page", "rebinding.study.study", "rebinding.cli.discover")
"""What every command imports, or builds, is there before the forks."""
OLD = "of an older run"
"""Lies where the results of a run go: a run that does not come to its end leaves it as it is."""


@dataclass(frozen=True)
class Command:
    """What is run on a store and a folder for results; `kinds` are the endings of what it writes there."""

    start: Callable[[Path, Path], int]
    moments: Mapping[str, Moment]
    results: tuple[str, ...]


def claims(store: Path, out: Path) -> int:
    """One claim on a planted model, with its report."""
    arguments = ["claims/test_binding.py", "-k", "q_redirects and not controlled", "--model", "planted:pointer"]
    quiet = ["-q", "-p", "no:cacheprovider", "--assert=plain"]
    return int(pytest.main([*arguments, "--samples", "12", "--store", str(store), "--report", str(out), *quiet]))


def discover(store: Path, out: Path) -> int:
    """A circuit found on a few prompts, with its picture."""
    arguments = ["discover", "--model", "planted:pointer", "--samples", "4", "--block", "2", "--store", str(store)]
    return commands.main([*arguments, "--save", str(out / "circuit.json"), "--figure", str(out / "circuit.svg")])


COMMANDS = {
    "claims": Command(claims, moments.CLAIMS, ("claims.json", "claims.csv", "samples.parquet", "index.html")),
    "discover": Command(discover, moments.DISCOVER, ("circuit.json",)),
}


def run(command: Command, folder: Path, before: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """In a process of its own; what it says comes through a pipe, which no limit on files concerns."""
    out, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(write_end, 1)
        os.dup2(write_end, 2)
        try:
            before()
            code = command.start(folder / "store", folder / "out")
        except BaseException:
            traceback.print_exc()
            code = 99
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    os.close(write_end)
    with os.fdopen(out, encoding="utf-8") as file:
        text = file.read()
    return {"code": wait_for_child(child), "said": text}


def laid(command: Command, folder: Path) -> Path:
    """A folder whose results are those of an older run."""
    (folder / "out").mkdir(parents=True)
    for name in command.results:
        (folder / "out" / name).write_text(OLD)
    return folder


def replaced(command: Command, folder: Path) -> list[str]:
    """Which results are no longer those of the older run."""
    return [name for name in command.results if (folder / "out" / name).read_bytes() != OLD.encode()]


def run_interrupted(
    command: Command, folder: Path, at: Moment, act: Callable[[Path], object], complete: Path
) -> dict[str, Any]:
    """Something happens at a moment; afterwards the same command again."""
    first = run(command, laid(command, folder), lambda: at.run_before_call(partial(act, folder)))
    stored, expected = content(folder / "store"), content(complete / "store")
    new, parts = replaced(command, folder), [str(path) for path in folder.rglob("*.part")]
    (folder / moments.FILLER).unlink(missing_ok=True)
    second = run(command, folder)
    return {
        **first,
        "kept": sorted({Path(name).parts[0] for name in stored}),
        "other": sorted(name for name, bytes in stored.items() if expected.get(name) != bytes),
        "old": [name for name in command.results if name not in new],
        "parts": parts,
        "again": second,
        "same": content(folder / "store") == expected,
        "new": replaced(command, folder),
    }


def main(root: Path, name: str, act: str, moment_names: Sequence[str]) -> None:
    command = COMMANDS[name]
    for module in HEAVY:
        import_module(module)
    torch.set_num_threads(1)
    build("pointer")
    complete = laid(command, root / "whole")
    outcomes: dict[str, Any] = {"undisturbed": {**run(command, complete), "new": replaced(command, complete)}}
    for moment in moment_names:
        folder = root / "tried"
        outcomes[moment] = run_interrupted(command, folder, command.moments[moment], getattr(moments, act), complete)
        shutil.rmtree(folder)
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
