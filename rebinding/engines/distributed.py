"""The driver: jobs request evidence, workers compute what is missing, and a job continues when nothing is missing.

A job that requests missing evidence stops with `MissingOutcomes`, which names the tasks to do first. When they are
done the job starts again, and finds everything up to that point in the store. So dependent tasks run in the order of
the job's requests, and the tasks of other jobs run at the same time. No job declares its requests beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, Protocol, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import torch

from rebinding.engines.queue import Progress, Queue
from rebinding.engines.stores import DriverSource, DriverStore, reraisable
from rebinding.engines.tasks import (
    Address,
    ComputeTask,
    DescribeTask,
    Failure,
    LoadOptions,
    MissingOutcomes,
    ModelDescription,
    Outcome,
    Shards,
    Task,
)
from rebinding.evidence.activations import Activations
from rebinding.evidence.store import Store, shelf_of
from rebinding.experiments.workbench import Workbench
from rebinding.models import LoadedModel, ModelError
from rebinding.study.engine import Session

Out = TypeVar("Out")
Tensors: TypeAlias = Mapping[Address, Callable[[], Activations]]
"""The input tensors of a task, each with a function that reads it."""


AHEAD = 4
"""Tasks per worker that should wait, so that a worker can choose those whose prompts it has recorded."""


class WorkerPool(Protocol):
    """Workers, by number, on any machine."""

    count: int

    def idle(self) -> list[int]:
        """The workers that are ready and have no task."""
        ...

    def give(self, worker: int, task: Task, inputs: Tensors) -> None:
        """Start a task on an idle worker, with its input tensors."""
        ...

    def take(self) -> Iterator[tuple[int, Outcome]]:
        """Wait until a worker has finished its task, or a new worker is ready (which yields nothing)."""
        ...

    def close(self) -> None:
        """Stop all workers."""
        ...


@dataclass
class Job:
    """A function that requests evidence, and the tasks that it waits for."""

    begin: Callable[[], object]
    missing_ids: set[str] = field(default_factory=set)
    was_resumed: bool = False
    """Whether it has waited for a task before."""


class DistributedEngine:
    """An engine whose workers compute and whose driver writes the store."""

    def __init__(self, create_pool: Callable[[], WorkerPool]) -> None:
        self._create_pool = create_pool
        self._pool: WorkerPool | None = None
        self._descriptions: dict[LoadOptions, ModelDescription] = {}
        self._failed: dict[str, Failure] = {}
        self._load_options: WeakKeyDictionary[LoadedModel, LoadOptions] = WeakKeyDictionary()
        self._store: DriverStore | None = None
        self._queue = Queue()

    # the interface of an engine

    def loaded_model(self, name: str, *, dtype: str, device: str, store: Store | None) -> LoadedModel:
        """A model from a worker's description; its weights stay on workers."""
        load_options = LoadOptions(name, dtype, device)
        task = DescribeTask(load_options)
        if task.id in self._failed:
            raise reraisable(self._failed[task.id])
        if load_options not in self._descriptions:
            raise MissingOutcomes((task,))
        description = self._descriptions[load_options]
        model = LoadedModel(
            name,
            lambda: _no_weights(name),
            description.tokenizer,
            description.anatomy,
            description.form,
            description.dtype,
            torch.device(description.device),
            revision=description.revision,
            known_fingerprint=description.fingerprint,
            weights=description.weights,
        )
        self._load_options[model] = load_options
        return model

    def session(self, loaded_model: LoadedModel, store: Store | None, *, skip_prompts: int = 0) -> Session:
        if self._store is None:
            self._store = DriverStore(store)
        if self._store.folder != store:
            raise ValueError(f"this engine keeps evidence in {self._store.folder}; make another engine for {store}")
        shelf = shelf_of(self._store, loaded_model=loaded_model.fingerprint, dtype=loaded_model.dtype)
        bench = Workbench(loaded_model, shelf, skip_prompts=skip_prompts)
        return Session(loaded_model, bench.prompts, DriverSource(bench, self._load_options[loaded_model], self._failed))

    def finish(self, job: Callable[[], Out]) -> Out:
        results: list[Out] = []
        self._run(iter([lambda: results.append(job())]))
        return results[-1]

    def prepare(self, jobs: Iterable[Callable[[], object]]) -> None:
        """Compute the evidence of jobs. Their errors are ignored here, and raised by `finish`."""
        self._run(partial(_run_quietly, job) for job in jobs)

    def close(self) -> None:
        """Stop the workers."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    # assigning tasks and collecting outcomes

    def _run(self, jobs: Iterator[Callable[[], object]]) -> None:
        """Start jobs while workers may run out of tasks, and continue those whose tasks are done."""
        waiting: list[Job] = []
        with Progress(self._queue) as progress:
            while True:
                self._assign_tasks()
                new_job = next(jobs, None) if self._needs_tasks else None
                if new_job is not None:
                    ready = [Job(new_job)]
                elif waiting:
                    done = self._collect_outcomes()
                    for job in waiting:
                        job.missing_ids -= done
                    ready = [job for job in waiting if not job.missing_ids]
                    progress.tell(len(done))
                else:
                    return
                waiting = [job for job in waiting if job.missing_ids] + [job for job in ready if self._step_lacks(job)]

    @property
    def _needs_tasks(self) -> bool:
        """Whether fewer tasks wait than give every worker a choice."""
        return len(self._queue.waiting) < AHEAD * (1 if self._pool is None else self._pool.count)

    def _step_lacks(self, job: Job) -> bool:
        """Continue a job; returns whether evidence is missing."""
        try:
            job.begin()
        except MissingOutcomes as missing:
            job.missing_ids = {task.id for task in missing.tasks}
            self._queue.add(missing.tasks, urgent=job.was_resumed)
        job.was_resumed = True
        return bool(job.missing_ids)

    def _assign_tasks(self) -> None:
        """Give every idle worker a task, while there are tasks."""
        if not self._queue.waiting:
            return
        if self._pool is None:
            self._pool = self._create_pool()
        for worker in self._pool.idle():
            task = self._queue.begin(worker)
            if task is not None:
                self._pool.give(worker, task, self._inputs(task))

    def _inputs(self, task: Task) -> Tensors:
        """The input tensors of a task; the pool reads those that the worker does not have."""
        addresses = task.inputs if isinstance(task, ComputeTask) else ()
        return {address: partial(self._read, address) for address in addresses}

    def _read(self, address: Address) -> Activations:
        assert self._store is not None
        tensors = self._store.get(Activations, *address)
        assert tensors is not None, f"{address} was in the store when the task was made"
        return tensors

    def _collect_outcomes(self) -> set[str]:
        """Wait for workers, and record their outcomes; returns the ids of the finished tasks."""
        assert self._pool is not None
        done = set()
        for worker, outcome in self._pool.take():
            task = self._queue.end(worker)
            self._record(task, outcome)
            done.add(task.id)
        return done

    def _record(self, task: Task, outcome: Outcome) -> None:
        if isinstance(outcome, Failure):
            self._failed[task.id] = outcome
        elif isinstance(outcome, ModelDescription):
            self._descriptions[task.load_options] = outcome
        elif isinstance(task, ComputeTask):
            if task.address not in outcome.contents:
                self._failed[task.id] = Failure(_version_mismatch(task, outcome), "the driver, on reading the shard")
                return
            assert self._store is not None
            content: Any  # evidence or activations
            for (experiment, key), content in outcome.contents.items():
                self._store.put(experiment, key, content)


def _version_mismatch(task: ComputeTask, outcome: Shards) -> ModelError:
    """The error for a worker's shard whose address is not the one that the driver expects."""
    return ModelError(
        f"{task.load_options.name}: the driver expected {task.address}, a worker returned {sorted(outcome.contents)}."
        " The worker's version of rebinding, torch or transformers is not the driver's, or its processor rounds the"
        " weights of a planted model differently. Install the same versions on all machines, and use machines of one"
        " kind."
    )


def _no_weights(name: str) -> NoReturn:
    raise ModelError(f"{name} is loaded on workers only; the driver cannot run it. Run it with --engine here")


def _run_quietly(job: Callable[[], object]) -> None:
    try:
        job()
    except MissingOutcomes:
        raise
    except Exception:  # `finish` raises it again
        return
