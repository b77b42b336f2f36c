"""Workers as actors of Ray: on this machine, or on all machines of a cluster.

Ray starts an actor that died again, wherever there is room, and gives it what it was at once more. What it had sent
home is in the store by then, and what it had not is computed again.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from rebinding.engines.distributed import Tensors
from rebinding.engines.tasks import Address, Computing, Failure, LostWorker, Outcome, Task
from rebinding.engines.worker import Worker, packed

TRIES = 6
"""How often a task is begun: a worker may die by no fault of the task, but hardly every time."""
WAIT = 10.0
"""Seconds in which the head of a cluster answers."""
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""Nothing is told to Ray's makers; and a worker that asks for no GPU may see those of its machine, as elsewhere."""


M_TRIM_THRESHOLD, M_MMAP_MAX, INT_MAX = -1, -4, 2**31 - 1
"""Of `malloc.h`."""


class EngineError(ValueError):
    """An engine that cannot be used, and what to do."""


@dataclass(frozen=True)
class Share:
    """How many workers there are, and what each of them has."""

    workers: int
    threads: int
    gpus: float


def share(cpus: float, gpus: float, *, workers: int | None, per_model: float | None, threads: int | None) -> Share:
    """Of what a cluster has: a GPU a worker where there are any, and else as many workers as there are cores.

    `per_model` are the GPUs of a worker, and `threads` its cores, where somebody has said so.
    """
    each = per_model if per_model is not None else 1.0 if gpus else 0.0
    if each > gpus:
        raise EngineError(
            f"--gpus-per-model {each:g}: the cluster has {gpus:g} GPUs; give fewer (0 computes on the CPU), or join "
            "machines with GPUs first"
        )
    count = workers or int(gpus / each if each else cpus / (threads or 1))
    cores = threads or max(1, int(cpus / max(1, count)))
    if cores > cpus:
        raise EngineError(f"OMP_NUM_THREADS {cores}: the cluster has {cpus:g} cores; give fewer")
    return Share(max(1, count), cores, each)


def keep_memory() -> None:
    """Let glibc keep what is freed: a task's tensors take the place of the last one's, instead of being had from the
    system page by page, which is a fifth of a worker's time. Other C libraries decide for themselves."""
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, INT_MAX)


class Actor:
    """A worker in a process of its own."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        keep_memory()
        self.worker = Worker()

    def ready(self) -> int:
        """That it is there; the id of its process."""
        return os.getpid()

    def do(self, task: bytes, names: list[Address], *tensors: Any) -> bytes:
        """What comes of a task. Where memory runs out, the process ends, and Ray begins another one in its place."""
        try:
            return packed(self.worker.do(pickle.loads(task), dict(zip(names, tensors, strict=True))))
        except (MemoryError, torch.OutOfMemoryError):
            os._exit(1)


class RayHands:
    """Actors, one a worker."""

    def __init__(
        self, ray: Any, *, address: str | None, workers: int | None, per_model: float | None, threads: int | None
    ) -> None:
        self._ray = ray
        connect(ray, address)
        has = ray.cluster_resources()
        given = share(has.get("CPU", 0), has.get("GPU", 0), workers=workers, per_model=per_model, threads=threads)
        made = ray.remote(num_cpus=given.threads, num_gpus=given.gpus, max_restarts=-1, max_task_retries=TRIES - 1)(
            Actor
        )
        self.count = given.workers
        self._actors = [made.remote(given.threads) for _ in range(given.workers)]
        self._coming = {actor.ready.remote(): number for number, actor in enumerate(self._actors)}
        self._there: set[int] = set()
        self._at_work: dict[Any, int] = {}
        self._tasks: dict[int, Task] = {}
        self._sent: dict[Address, Any] = {}

    def idle(self) -> list[int]:
        return sorted(self._there - set(self._at_work.values()))

    def give(self, worker: int, task: Task, given: Tensors) -> None:
        """Tensors go into the cluster's memory once, and from there to whoever needs them."""
        for address, read in given.items():
            if address not in self._sent:
                self._sent[address] = self._ray.put(read())
        tensors = [self._sent[address] for address in given]
        self._tasks[worker] = task
        self._at_work[self._actors[worker].do.remote(pickle.dumps(task), list(given), *tensors)] = worker

    def take(self) -> Iterator[tuple[int, Outcome]]:
        done, _ = self._ray.wait([*self._coming, *self._at_work], num_returns=1)
        for one in done:
            if one in self._coming:
                self._ray.get(one)
                self._there.add(self._coming.pop(one))
            else:
                worker = self._at_work.pop(one)
                yield worker, self._outcome(one, self._tasks.pop(worker))

    def _outcome(self, one: Any, task: Task) -> Outcome:
        try:
            outcome: Outcome = pickle.loads(self._ray.get(one))
        except self._ray.exceptions.RayActorError as error:
            what = task.address[0] if isinstance(task, Computing) else "loading it"
            why = (
                f"{task.loading.name}: {TRIES} workers died one after the other at the same task ({what}). If it is too"
                " large for the memory of one, give each more of it: --gpus-per-model, or fewer --workers"
            )
            return Failure(LostWorker(why), str(error))
        return outcome

    def close(self) -> None:
        self._ray.shutdown()


def connect(ray: Any, address: str | None) -> None:
    """Join a cluster that is there, or start one on this machine for as long as this process runs."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    quietly = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        ray.init(address="local", include_dashboard=False, **quietly)
        return
    try:
        if address != "auto":
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=WAIT).close()  # Ray itself would try for minutes
        ray.init(address=address, **quietly)
    except (OSError, ValueError) as error:
        raise EngineError(
            f"--address {address}: no Ray cluster answers there ({error}). Give HOST:PORT of a head, from a machine of"
            " its cluster (ray start --head begins one), auto for the one of this machine, or nothing to begin one here"
        ) from error
