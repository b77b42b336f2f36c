"""Run by tests: whole commands, each in a fork, to which something happens at a moment; then the same once more.

A moment needs no clock: it is before the nth call of a named function.

    python -m tests.oracles.faults.interrupted_commands FOLDER COMMAND EVENT MOMENT [MOMENT ...]

COMMAND is `claims` or `discover`; EVENT is `interrupt`, `fill_disk` or `full`.

`full` needs a small file system, such as one that `unshare -Urm` and `mount -t tmpfs -o size=16m` make.
What was said, the status, and what lay in the store and beside it before and after are printed as JSON.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, reduce, wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from rebinding.cli import commands
from rebinding.planted import build
from tests.oracles.faults.processes import run_in_child
from tests.oracles.faults.stores import content

HEAVY = ("hypothesis", "rebinding.report.page", "rebinding.study.study", "rebinding.cli.discover")
"""What every command imports, or builds, is there before the forks."""
OLD = "of an older run"
"""Lies where the results of a run go: a run that does not come to its end leaves it as it is."""
FILLER = "filler"
MAXIMUM = 1 << 26
"""Bytes of a file system that is filled at the most."""


@dataclass(frozen=True)
class Moment:
    """Before the call number `call` of what stands at a place, `module:name`, where it is looked up."""

    place: str
    call: int = 1

    def run_before_call(self, act: Callable[[], object]) -> None:
        """From now on `act` is done at this moment."""
        module, _, names = self.place.partition(":")
        *owners, name = names.split(".")
        owner, count = reduce(getattr, owners, import_module(module)), 0
        original = getattr(owner, name)

        @wraps(original)
        def watched(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == self.call:
                act()
            return original(*arguments, **options)

        setattr(owner, name, watched)


def interrupt(folder: Path) -> None:
    """Ctrl-C, as a terminal sends it; whoever started this process may have had the signal ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.kill(os.getpid(), signal.SIGINT)


def fill_disk(folder: Path) -> None:
    """From now on the kernel refuses to write more than a few bytes of a file, whoever writes: Python, Arrow,
    safetensors. The error has another number than that of a full disk. To pretend one in Python would miss what
    libraries write, and a small file system takes rights that not everybody has."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def full(folder: Path) -> None:
    """Fill the file system; it has to be a small one, made for this."""
    status = os.statvfs(folder)
    assert status.f_bavail * status.f_frsize < MAXIMUM, (
        f"{folder} has too much room to be filled: mount a small tmpfs there"
    )
    with (folder / FILLER).open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(1024)):
            pass


ACTS: Mapping[str, Callable[[Path], None]] = {"interrupt": interrupt, "fill_disk": fill_disk, "full": full}
SURGEON = "rebinding.surgery.torch_surgeon:TorchSurgeon"
STORE = "rebinding.evidence.store:write"
CLAIMS: Mapping[str, Moment] = {
    "load": Moment("rebinding.study.plants:load"),
    "self-check": Moment("rebinding.models.loaded_model:check"),
    "recording": Moment(f"{SURGEON}.record", 5),
    "replay": Moment(f"{SURGEON}._run_batch", 17),
    "keeping": Moment(STORE, 4),
    "a shard without its note": Moment("rebinding.evidence.shards:write_text", 4),
    "judging": Moment("fixtures.judging:judgement"),
    "the model is let go": Moment("fixtures.report:describe_model"),
    "evidence of the report": Moment("fixtures.report:put_in_place", 3),
    "report": Moment("fixtures.report:write"),
    "the last of its tables": Moment("rebinding.report.files:write_text"),
    "the page": Moment("rebinding.report.page:put_in_place"),
}
"""The four calls of `record` that come first, and nine of `_run_batch`, are of the self-check and of gates."""
DISCOVER: Mapping[str, Moment] = {
    "import": Moment("rebinding.cli.commands:importlib.import_module"),
    "load": Moment("rebinding.study.plants:load"),
    "recording": Moment(f"{SURGEON}.record", 4),
    "replay": Moment(f"{SURGEON}._run_batch", 12),
    "keeping": Moment(STORE, 4),
    "choosing heads": Moment("rebinding.experiments.paths.measure:_selected", 2),
    "the picture": Moment("rebinding.report.figures.circuits:draw_circuit"),
}


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
    "claims": Command(claims, CLAIMS, ("claims.json", "claims.csv", "samples.parquet", "index.html")),
    "discover": Command(discover, DISCOVER, ("circuit.json",)),
}


def run(command: Command, folder: Path, before: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """In a process of its own, after something else."""

    def act() -> int:
        before()
        return command.start(folder / "store", folder / "out")

    code, text = run_in_child(act)
    return {"code": code, "output": text}


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
    (folder / FILLER).unlink(missing_ok=True)
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
        outcomes[moment] = run_interrupted(command, folder, command.moments[moment], ACTS[act], complete)
        shutil.rmtree(folder)
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
