"""Workers as actors of Ray: on this machine, or on all machines of a cluster.

Ray restarts an actor that died, on any machine with free resources, and gives it its last task again. What the actor
returned before is in the store, and the rest is computed again.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from rebinding.engines.worker import Address, Task, TaskOutcome, Worker, pack
from rebinding.evidence.store import Activations
from rebinding.models import ModelError

TRIES = 6
"""Attempts for each task: a worker may die for another reason than its task, but rarely every time."""
WAIT = 10.0
"""Seconds in which the head of a cluster must answer."""
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""No usage statistics are sent to Ray's makers, and a worker without a GPU of its own still sees its machine's."""
M_TRIM_THRESHOLD, M_MMAP_MAX, INT_MAX = -1, -4, 2**31 - 1
"""Constants of `malloc.h`."""


class EngineError(ValueError):
    """An engine that cannot be used, and what to do."""


class LostWorker(ModelError):
    """A task whose workers died one after the other."""


@dataclass(frozen=True)
class Share:
    """The number of workers, and the threads and GPUs of each."""

    workers: int
    threads: int
    gpus: float


def share(cpus: float, gpus: float, *, workers: int | None, per_model: float | None, threads: int | None) -> Share:
    """Divide a cluster into workers: one per GPU, or one per core without GPUs.

    `per_model` is the number of GPUs of a worker, and `threads` that of its cores; None for the default.
    """
    gpus_each = per_model if per_model is not None else 1.0 if gpus else 0.0
    if gpus_each > gpus:
        raise EngineError(
            f"--gpus-per-model {gpus_each:g}: the cluster has {gpus:g} GPUs; give fewer (0 computes on the CPU), or "
            "join machines with GPUs first"
        )
    count = workers or int(gpus / gpus_each if gpus_each else cpus / (threads or 1))
    cores = threads or max(1, int(cpus / max(1, count)))
    if cores > cpus:
        raise EngineError(f"OMP_NUM_THREADS {cores}: the cluster has {cpus:g} cores; give fewer")
    return Share(max(1, count), cores, gpus_each)


def keep_memory() -> None:
    """Let glibc keep freed memory: a task's tensors reuse that of the last task, instead of new pages from the system,
    which take a fifth of a worker's time. Other C libraries keep their default."""
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, INT_MAX)


class Actor:
    """A worker in a process of its own."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        keep_memory()
        self.worker = Worker()

    def run_task(self, pickled: bytes, *tensors: Activations) -> bytes:
        """The outcome of a task. Where memory runs out, the process ends, and Ray starts another one."""
        try:
            task: Task = pickle.loads(pickled)
            return pack(self.worker.run_task(task, dict(zip(task.inputs, tensors, strict=True))))
        except (MemoryError, torch.OutOfMemoryError):
            os._exit(1)


class RayWorkerPool:
    """Workers as Ray actors, by number."""

    def __init__(
        self, ray: Any, *, address: str | None, workers: int | None, per_model: float | None, threads: int | None
    ) -> None:
        self._ray = ray
        connect(ray, address)
        has = ray.cluster_resources()
        cpus, gpus = has.get("CPU", 0), has.get("GPU", 0)
        each = share(cpus, gpus, workers=workers, per_model=per_model, threads=threads)
        resources = {"num_cpus": each.threads, "num_gpus": each.gpus}
        actor_class = ray.remote(**resources, max_restarts=-1, max_task_retries=TRIES - 1)(Actor)
        self.count = each.workers
        self._actors = [actor_class.remote(each.threads) for _ in range(each.workers)]
        self._running: dict[Any, tuple[int, Task | None]] = {
            actor.__ray_ready__.remote(): (worker, None) for worker, actor in enumerate(self._actors)
        }
        """What Ray was asked for: the outcome of a worker's task, or, without a task, word that it has started."""
        self._placed: dict[Address, Any] = {}

    def idle(self) -> list[int]:
        """The workers that are ready and have no task."""
        busy = {worker for worker, _ in self._running.values()}
        return [worker for worker in range(self.count) if worker not in busy]

    def give(self, worker: int, task: Task, read: Callable[[Address], Activations]) -> None:
        """Start a task on an idle worker. `read` gets its input tensors, which are put into the cluster's memory once;
        each worker reads them from there."""
        for address in task.inputs:
            if address not in self._placed:
                self._placed[address] = self._ray.put(read(address))
        tensors = [self._placed[address] for address in task.inputs]
        self._running[self._actors[worker].run_task.remote(pickle.dumps(task), *tensors)] = worker, task

    def take(self) -> Iterator[tuple[int, TaskOutcome]]:
        """Wait until a worker has finished its task, or a new worker is ready (which yields nothing)."""
        done, _ = self._ray.wait([*self._running])
        for reference in done:
            worker, task = self._running.pop(reference)
            if task is None:
                self._ray.get(reference)
            else:
                yield worker, self._outcome(reference, task)

    def _outcome(self, reference: Any, task: Task) -> TaskOutcome:
        try:
            outcome: TaskOutcome = pickle.loads(self._ray.get(reference))
        except self._ray.exceptions.RayActorError as error:
            name = task.address[0] if task.request else "loading it"
            lost = LostWorker(
                f"{task.load_options.name}: {TRIES} workers died one after the other at the same task ({name}). If it"
                " is too large for the memory of one, give each more memory: --gpus-per-model, or fewer --workers"
            )
            lost.add_note(f"on a worker:\n{error}")
            return lost
        return outcome

    def close(self) -> None:
        """Stop all workers."""
        self._ray.shutdown()


def connect(ray: Any, address: str | None) -> None:
    """Join an existing cluster, or start one on this machine for as long as this process runs."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    log_options = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        ray.init(address="local", include_dashboard=False, **log_options)
        return
    try:
        if address != "auto":
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=WAIT).close()  # Ray itself would try for minutes
        ray.init(address=address, **log_options)
    except (OSError, ValueError) as error:
        raise EngineError(
            f"--address {address}: no Ray cluster answers there ({error}). Give HOST:PORT of a head, from a machine of"
            " its cluster (ray start --head starts one), auto for the one on this machine, or nothing to start one here"
        ) from error
