"""Workers that live in this process. What they get and what they bring is pickled, as for a machine far away."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from random import Random

from rebinding.engines.distributed import DistributedEngine, Tensors
from rebinding.engines.tasks import Outcome, Task
from rebinding.engines.worker import Worker, packed


class Nearby:
    """A few workers, of which now this one and now that one is done first."""

    def __init__(self, count: int, seed: int = 0) -> None:
        self.count = count
        self.workers = [Worker() for _ in range(count)]
        self.given: dict[int, bytes] = {}
        self.log: list[tuple[int, Task]] = []
        self.most = 0
        """How many were at work at the same time."""
        self.order = Random(seed)

    def idle(self) -> list[int]:
        return [number for number in range(self.count) if number not in self.given]

    def give(self, worker: int, task: Task, given: Tensors) -> None:
        assert worker in self.idle()
        tensors = {address: read() for address, read in given.items()}
        self.given[worker] = pickle.dumps((task, tensors))
        self.log.append((worker, task))
        self.most = max(self.most, len(self.given))

    def take(self) -> Iterator[tuple[int, Outcome]]:
        worker = self.order.choice(sorted(self.given))
        task, tensors = pickle.loads(self.given.pop(worker))
        yield worker, pickle.loads(packed(self.workers[worker].do(task, tensors)))

    def close(self) -> None:
        self.given.clear()


def engine(count: int = 2, seed: int = 0) -> tuple[DistributedEngine, Nearby]:
    """An engine with such workers, and the workers."""
    pool = Nearby(count, seed)
    return DistributedEngine(lambda: pool), pool
