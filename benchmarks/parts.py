"""A pytest plugin that shares out the seconds of a run of claims to its parts (`-p benchmarks.parts`).

A function's own seconds are those in which no other timed function runs inside it, so the parts add up to the whole.
What comes before pytest is configured is imports; what no part claims is pytest itself and the evidence's tables.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from pathlib import Path
from time import perf_counter, time
from typing import Any

import psutil
import pytest

VARIABLE = "REBINDING_PARTS"
"""Names the file that the seconds are written to."""
TIMED = {
    "plants": ("rebinding.study.model_under_test:ModelUnderTest._load", "rebinding.study.plants:declared"),
    "recordings": ("rebinding.surgery.torch_surgeon:TorchSurgeon.record",),
    "replays": (
        "rebinding.surgery.torch_surgeon:TorchSurgeon.run",
        "rebinding.surgery.torch_surgeon:TorchSurgeon.run_mean_ablated",
    ),
    "judging": ("fixtures.judging:judge",),
    "report": ("fixtures.report:write", "fixtures.report:keep_evidence", "rebinding.report.page:render"),
}


class Clock:
    """Seconds by part; the innermost part that runs is charged."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.running: list[str] = []
        self.start = perf_counter()

    def charge(self) -> None:
        """Charge what has gone by to whoever ran."""
        now, part = perf_counter(), self.running[-1] if self.running else "pytest"
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self.start
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

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed as a part."""

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return function(*args, **kwargs)

        return timed


CLOCK = Clock()


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Everything that the plugin imports is there: what went by since the process began is imports."""
    CLOCK.charge()
    CLOCK.seconds = {"imports": time() - psutil.Process().create_time()}
    for part, places in TIMED.items():
        for place in places:
            module, _, path = place.partition(":")
            owner, _, name = path.rpartition(".")
            home: Any = import_module(module)
            home = getattr(home, owner) if owner else home
            setattr(home, name, CLOCK.wrap(part, getattr(home, name)))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Write what was counted."""
    CLOCK.charge()
    if VARIABLE in os.environ:
        Path(os.environ[VARIABLE]).write_text(json.dumps(CLOCK.seconds))
