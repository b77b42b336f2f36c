"""Moments of a run that need no clock: the nth call of a function that is named, before which something happens."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce, wraps
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Moment:
    """Before the call number `call` of what stands at a place, `module:name`, where it is looked up."""

    place: str
    call: int = 1

    def then(self, act: Callable[[], object]) -> None:
        """From now on `act` is done at this moment."""
        module, _, names = self.place.partition(":")
        *owners, name = names.split(".")
        there, seen = reduce(getattr, owners, import_module(module)), 0
        original = getattr(there, name)

        @wraps(original)
        def watched(*given: Any, **named: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen == self.call:
                act()
            return original(*given, **named)

        setattr(there, name, watched)


def interrupt() -> None:
    """Ctrl-C, as a terminal sends it; whoever started this process may have had the signal ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.kill(os.getpid(), signal.SIGINT)


def no_room() -> None:
    """From now on the kernel refuses to write more than a few bytes of a file, with all that writes files in here:
    Python, Arrow, safetensors. A full disk has another number of error; a small file system would need an
    administrator, and to pretend in Python would miss what is written by libraries."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


SURGEON = "rebinding.surgery.torch_surgeon:TorchSurgeon"
STORE = "rebinding.evidence.store:write"
CLAIMS: Mapping[str, Moment] = {
    "load": Moment("rebinding.study.plants:load"),
    "self-check": Moment("rebinding.subjects.subject:check_subject"),
    "recording": Moment(f"{SURGEON}.record", 5),
    "replay": Moment(f"{SURGEON}._run_batch", 17),
    "keeping": Moment(STORE, 4),
    "a shard without its note": Moment("rebinding.evidence.shards:write_text", 4),
    "judging": Moment("fixtures.judging:judgement"),
    "the model is let go": Moment("fixtures.telling:described"),
    "evidence of the report": Moment("fixtures.telling:put_in_place", 3),
    "report": Moment("fixtures.telling:write"),
    "a table of the report": Moment("rebinding.report.folder:pq.write_table"),
}
"""The four calls of `record` that come first, and nine of `_run_batch`, are of the self-check and of gates."""
DISCOVER: Mapping[str, Moment] = {
    "import": Moment("rebinding.verbs.verbs:importlib.import_module"),
    "load": Moment("rebinding.verbs.discover:load"),
    "recording": Moment(f"{SURGEON}.record", 4),
    "replay": Moment(f"{SURGEON}._run_batch", 12),
    "keeping": Moment(STORE, 4),
    "choosing heads": Moment("rebinding.experiments.circuit.discovery:scores", 2),
    "the picture": Moment("rebinding.report.figures.circuit:draw_circuit"),
}
