"""A pytest plugin that shares out a run of claims to its parts (`-p benchmarks.parts`).

A function's own seconds are those in which no other timed function runs inside it, so the parts add up to the whole.
What comes before pytest is configured is imports; what no part claims is pytest itself. With `FLOOR` set, the matrix
products of each part are counted as well, which takes time: seconds and operations come from two runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from pathlib import Path
from time import perf_counter, time
from typing import Any

import psutil
import pytest
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

VARIABLE, FLOOR = "REBINDING_PARTS", "REBINDING_PARTS_FLOOR"
"""Names the file that the parts are written to; counts operations, if set."""
TIMED = {
    "collecting rows": ("_pytest.main:Session.perform_collect",),
    "building plants": ("rebinding.study.model_under_test:ModelUnderTest._load", "rebinding.study.plants:declared"),
    "self-checks": ("rebinding.models.selfcheck:_check_at_load", "rebinding.models.selfcheck:derive_checked"),
    "recordings": (
        "rebinding.surgery.torch_surgeon:TorchSurgeon.record",
        "rebinding.surgery.torch_surgeon:TorchSurgeon.record_mean_ablated",
    ),
    "statistics": ("fixtures.judging:judge",),
    "store": ("rebinding.evidence.store:Store.get", "rebinding.evidence.store:Store.put"),
    "figures": ("rebinding.report.figures.draw:draw_all",),
    "page and files": (
        "rebinding.report.page:render",
        "rebinding.report.files:write",
        "rebinding.evidence.evidence:Evidence.save",
    ),
    "terminal": ("fixtures.terminal:verdict_lines", "fixtures.terminal:UnfinishedReports._write"),
}
"""The functions of each part that is the same whatever is measured, where their callers look them up."""
SECTIONS = {
    "unedited": "gates",
    "tracing": "section 3",
    "paths": "discovery",
    "search": "discovery",
    "ablation": "section 4.1",
    "circuit": "section 4.1",
    "roles": "section 4.2",
    "attention": "section 4.1",
    "binding": "section 5",
}
"""The part of an experiment, by the package of its function below `rebinding.experiments`."""
RUNS = ("run", "sweep", "run_mean_ablated")
"""The methods of the surgeon that run edits."""


class Clock:
    """Seconds and operations by part; the innermost part that runs is charged."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.operations: dict[str, float] = {}
        self.running: list[str] = []
        self.start = perf_counter()

    @property
    def current(self) -> str:
        """The innermost part that runs."""
        return self.running[-1] if self.running else "pytest"

    def charge(self) -> None:
        """Charge what has gone by to the part that ran."""
        now = perf_counter()
        self.seconds[self.current] = self.seconds.get(self.current, 0.0) + now - self.start
        self.start = now

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Within this block a part runs."""
        self.charge()
        self.running.append(name)
        try:
            yield
        finally:
            self.charge()
            self.running.pop()

    def wrap(self, name: Callable[..., str], function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed as the part that `name` gives for its arguments; a generator runs to its end in it."""

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.part(name(*args)):
                result = function(*args, **kwargs)
                return list(result) if isinstance(result, Generator) else result

        return timed


CLOCK = Clock()


class Operations(TorchDispatchMode):
    """Charges the floating-point operations of matrix products to the part that runs."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if count := flop_registry.get(function._overloadpacket):
            operations = count(*args, **(kwargs or {}), out_val=result)
            CLOCK.operations[CLOCK.current] = CLOCK.operations.get(CLOCK.current, 0) + operations
        return result


def time_function(place: str, name: Callable[..., str]) -> None:
    """Replace a function, `module:name` or `module:class.name`, by a timed one."""
    module, _, path = place.partition(":")
    owner, _, attribute = path.rpartition(".")
    home: Any = import_module(module)
    home = getattr(home, owner) if owner else home
    setattr(home, attribute, CLOCK.wrap(name, getattr(home, attribute)))


def experiment_part(experiment: Any, *_: Any) -> str:
    """The part of an experiment: preparing its prompts and making its table."""
    return f"{SECTIONS[experiment.run.__module__.split('.')[2]]}: prompts and tables"


def edits_part(*_: Any) -> str:
    """The part of edits: of the experiment that asks for them, or of whatever else runs."""
    return CLOCK.current.replace(": prompts and tables", ": edits")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Everything that the plugin imports is there: what went by since the process began is imports."""
    CLOCK.charge()
    CLOCK.seconds = {"imports": time() - psutil.Process().create_time()}
    for part, places in TIMED.items():
        for place in places:
            time_function(place, lambda *_, part=part: part)
    for method in ("evidence", "tensors"):
        time_function(f"rebinding.experiments.table:Experiment.{method}", experiment_part)
    for method in RUNS:
        time_function(f"rebinding.surgery.torch_surgeon:TorchSurgeon.{method}", edits_part)
    if os.environ.get(FLOOR):
        Operations().__enter__()  # type: ignore[no-untyped-call]  # torch's modes have no types


def pytest_unconfigure(config: pytest.Config) -> None:
    """Write what was counted."""
    CLOCK.charge()
    if VARIABLE in os.environ:
        measured = {"seconds": CLOCK.seconds, "operations": CLOCK.operations}
        Path(os.environ[VARIABLE]).write_text(json.dumps(measured))
