"""Workers in this process. Tasks and outcomes are pickled, as for another machine.

As a pytest plugin of runs of the claims (`-p tests.engines.local_pool`): `--engine ray` uses them, and prints counts.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from rebinding.engines.choice import Choice
from rebinding.engines.distributed import DistributedEngine
from rebinding.engines.on_ray import RayWorkerPool
from rebinding.engines.worker import Address, Task, TaskOutcome, Worker, pack
from rebinding.evidence.store import Activations

POOL = pytest.StashKey["LocalPool"]()


class LocalPool(RayWorkerPool):
    """A few workers that finish in random order, without Ray."""

    def __init__(self, count: int, seed: int = 0) -> None:
        self.count = count
        self.workers = [Worker() for _ in range(count)]
        self.running: dict[int, bytes] = {}
        self.log: list[tuple[int, Task]] = []
        self.max_running = 0
        """The most workers that ran at the same time."""
        self.order = Random(seed)

    def idle(self) -> list[int]:
        return [number for number in range(self.count) if number not in self.running]

    def give(self, worker: int, task: Task, read: Callable[[Address], Activations]) -> None:
        assert worker in self.idle()
        tensors = {address: read(address) for address in task.inputs}
        self.running[worker] = pickle.dumps((task, tensors))
        self.log.append((worker, task))
        self.max_running = max(self.max_running, len(self.running))

    def take(self) -> Iterator[tuple[int, TaskOutcome]]:
        worker = self.order.choice(sorted(self.running))
        task, tensors = pickle.loads(self.running.pop(worker))
        yield worker, pickle.loads(pack(self.workers[worker].run_task(task, tensors)))

    def close(self) -> None:
        self.running.clear()


def make_engine(count: int = 2, seed: int = 0) -> tuple[DistributedEngine, LocalPool]:
    """An engine with local workers, and its pool."""
    pool = LocalPool(count, seed)
    return DistributedEngine(lambda: pool), pool


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Use local workers instead of actors; the option stays the same otherwise."""
    config.stash[POOL] = pool = LocalPool(2)
    Choice._pool_factory = lambda self: lambda: pool  # type: ignore[method-assign]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    pool = config.stash[POOL]
    ids = [task.id for _, task in pool.log]
    terminalreporter.write_line(f"tasks {len(ids)}, different {len(set(ids))}, at the same time {pool.max_running}")
