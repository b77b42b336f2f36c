"""Moments of a run without a clock: an action before the nth call of a named function."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce, wraps
from importlib import import_module
from pathlib import Path
from typing import Any

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
