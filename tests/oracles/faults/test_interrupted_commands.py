"""Ctrl-C or a full disk at any stage of a command: one line, no half of anything, and the same command goes on.

    python -m tests.oracles.faults.test_interrupted_commands FOLDER COMMAND EVENT MOMENT [MOMENT ...]

runs whole commands, each in a fork, to which something happens at a moment; then the same once more. A moment needs no
clock: it is before the nth call of a named function. COMMAND is `claims` or `discover`; EVENT is `interrupt`,
`refuse_writes` or `fill_disk`, which needs a small file system (see docs/faults.md). What was said, the status, and
what lay in the store and beside it before and after are printed as JSON.
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
from tests.evidence.stores import content
from tests.processes import run_in_child, run_module

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

    def find(self) -> tuple[Any, str]:
        """The module or class at the place, and the function's name in it."""
        module, _, names = self.place.partition(":")
        *owners, name = names.split(".")
        return reduce(getattr, owners, import_module(module)), name

    def run_before_call(self, act: Callable[[], object]) -> None:
        """From now on `act` is done at this moment."""
        (owner, name), count = self.find(), 0
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


def refuse_writes(folder: Path) -> None:
    """From now on the kernel refuses to write more than a few bytes of a file, whoever writes: Python, Arrow,
    safetensors. The error has another number than that of a full disk. To pretend one in Python would miss what
    libraries write, and a small file system takes rights that not everybody has."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def fill_disk(folder: Path) -> None:
    """Fill the file system; it has to be a small one, made for this."""
    status = os.statvfs(folder)
    assert status.f_bavail * status.f_frsize < MAXIMUM, f"{folder} has too much room: mount a small tmpfs there"
    with (folder / FILLER).open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(1024)):
            pass


EVENTS: Mapping[str, Callable[[Path], None]] = {
    "interrupt": interrupt, "refuse_writes": refuse_writes, "fill_disk": fill_disk,
}  # fmt: skip
SURGEON = "rebinding.surgery.torch_surgeon:TorchSurgeon"
STORE = "rebinding.evidence.store:write"


@dataclass(frozen=True)
class Command:
    """What is run on a store and a folder for results, the results, and how it ends at Ctrl-C and where a disk refuses
    to write."""

    start: Callable[[Path, Path], int]
    moments: Mapping[str, Moment]
    results: tuple[str, ...]
    interrupted: str
    refused: str
    refused_code: int


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
    "claims": Command(
        claims,
        {
            "load": Moment("rebinding.study.plants:load"),
            "self-check": Moment("rebinding.models.loaded_model:check"),
            # the four calls of `record` that come first, and nine of `_run_batch`, are of the self-check and of gates
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
        },
        ("claims.json", "claims.csv", "samples.parquet", "index.html"),
        "interrupted; finished evidence is in {store}: the same command goes on from there and writes the report",
        "Exit: no report in {out}: ",
        pytest.ExitCode.USAGE_ERROR,
    ),
    "discover": Command(
        discover,
        {
            "import": Moment("rebinding.cli.commands:importlib.import_module"),
            "load": Moment("rebinding.study.plants:load"),
            "recording": Moment(f"{SURGEON}.record", 4),
            "replay": Moment(f"{SURGEON}._run_batch", 12),
            "keeping": Moment(STORE, 4),
            "choosing heads": Moment("rebinding.experiments.paths.summary:_selected", 2),
            "the picture": Moment("rebinding.report.figures.circuits:draw_circuit"),
        },
        ("circuit.json",),
        "rebinding discover: interrupted; finished evidence is in the store (unless --no-store). Run the same command"
        " again to continue",
        "rebinding discover: {out}/circuit.json: File too large",
        2,
    ),
}
NOTHING_KEPT = ("import", "load", "self-check")
"""Moments at which nothing can have been kept yet."""
ALL_WRITTEN = ("the picture", "the page")
"""Moments at which results are there already."""


def run(command: Command, folder: Path, before: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """Run a command in a process of its own, after something else; `new` are the results that it has replaced."""

    def act() -> int:
        before()
        return command.start(folder / "store", folder / "out")

    if not (folder / "out").exists():
        (folder / "out").mkdir(parents=True)
        for name in command.results:
            (folder / "out" / name).write_text(OLD)
    code, text = run_in_child(act)
    new = [name for name in command.results if (folder / "out" / name).read_bytes() != OLD.encode()]
    return {"code": code, "output": text, "new": new}


def run_interrupted(command: Command, moment: str, event: str, folder: Path, expected: Mapping[str, bytes]) -> Any:
    """Something happens at a moment; afterwards the same command again."""
    at, act = command.moments[moment], partial(EVENTS[event], folder)
    first = run(command, folder, lambda: at.run_before_call(act))
    stored, parts = content(folder / "store"), [str(path) for path in folder.rglob("*.part")]
    other = sorted(name for name, shard in stored.items() if expected.get(name) != shard)
    (folder / FILLER).unlink(missing_ok=True)
    again = run(command, folder)
    same = content(folder / "store") == expected
    return {**first, "kept": bool(stored), "other": other, "parts": parts, "again": again, "same": same}


def main(root: Path, name: str, event: str, moments: Sequence[str]) -> None:
    command = COMMANDS[name]
    for module in HEAVY:
        import_module(module)
    torch.set_num_threads(1)
    build("pointer")
    outcomes = {"undisturbed": run(command, root / "whole")}
    expected = content(root / "whole" / "store")
    for moment in moments:
        outcomes[moment] = run_interrupted(command, moment, event, root / "tried", expected)
        shutil.rmtree(root / "tried")
    print(json.dumps(outcomes))


def outcomes_at(moments: Sequence[str], name: str, event: str, folder: Path) -> list[tuple[str, dict[str, Any]]]:
    """What a process of its own saw at each moment, after what is the same of every event was checked."""
    module = "tests.oracles.faults.test_interrupted_commands"
    outcomes: dict[str, dict[str, Any]] = run_module(module, folder, name, event, *moments)
    baseline = outcomes.pop("undisturbed")
    assert list(outcomes) == list(moments)
    for moment, outcome in outcomes.items():
        output = outcome["output"]
        assert not [word for word in ("Traceback", "KeyboardInterrupt", "INTERNALERROR") if word in output], output
        assert not outcome["parts"]
        assert not outcome["other"], "the store has something that an undisturbed run does not leave"
        assert not outcome["new"] or moment in ALL_WRITTEN
        assert outcome["again"]["code"] == 0, outcome["again"]["output"]
        assert outcome["same"]
        assert outcome["again"]["new"] == baseline["new"]
    return list(outcomes.items())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_moment_is_a_call_of_a_function_that_exists(name: str) -> None:
    for moment in COMMANDS[name].moments.values():
        owner, function = moment.find()
        assert callable(getattr(owner, function, None)), moment.place


@pytest.mark.parametrize(
    ("name", "moments"),
    [
        ("discover", ("recording",)),
        *(pytest.param(name, tuple(COMMANDS[name].moments), marks=pytest.mark.slow) for name in COMMANDS),
    ],
)
def test_ctrl_c_leaves_one_line_and_the_command_continues(name: str, moments: tuple[str, ...], tmp_path: Path) -> None:
    message = COMMANDS[name].interrupted.format(store=tmp_path / "tried" / "store")
    for moment, outcome in outcomes_at(moments, name, "interrupt", tmp_path):
        output = outcome["output"]
        assert outcome["code"] == 2, output
        assert output.count("interrupted") == output.count(message) == 1, output
        assert ".py" not in output, output
        assert outcome["kept"] == (moment not in NOTHING_KEPT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "moments"), [("claims", ("keeping", "the last of its tables", "the page")), ("discover", ("keeping",))]
)
def test_a_full_disk_is_reported_and_the_command_continues(name: str, moments: tuple[str, ...], tmp_path: Path) -> None:
    out, store = tmp_path / "tried" / "out", tmp_path / "tried" / "store"
    for moment, outcome in outcomes_at(moments, name, "refuse_writes", tmp_path):
        output = outcome["output"]
        assert outcome["code"] == COMMANDS[name].refused_code, output
        assert output.count(COMMANDS[name].refused.format(out=out)) == 1, output
        assert (f"evidence cannot be stored in {store}" in output) == (moment == "keeping")
        assert outcome["kept"]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
