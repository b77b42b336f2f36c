"""The driver: jobs ask for evidence, what they lack is given out to workers, and a job goes on when it lacks nothing.

A job that comes to something that is not there stops with `Missing`, which names the tasks to be done first. It is
begun again when they are done, and finds everything up to there in the store. So what depends on something else comes
after it, in the order in which the job asks, and all that other jobs ask for runs beside it. Nobody has to say
beforehand what will be asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, Protocol, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import torch

from rebinding.engines.queue import Progress, Queue
from rebinding.engines.stores import DriverSource, DriverStore, again
from rebinding.engines.tasks import (
    Address,
    Computing,
    Described,
    Describing,
    Failure,
    Loading,
    Missing,
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
"""Tensors that go with a task, each read when it is asked for."""


AHEAD = 4
"""So many tasks a worker should wait, so that it may choose those whose prompts it has recorded."""


class WorkerPool(Protocol):
    """Workers, by number, wherever they are."""

    count: int

    def idle(self) -> list[int]:
        """Those that are there and have nothing to do."""
        ...

    def give(self, worker: int, task: Task, given: Tensors) -> None:
        """Let an idle one begin, and see to it that it has the tensors."""
        ...

    def take(self) -> Iterator[tuple[int, Outcome]]:
        """Wait until something happens: a worker is done with its task, or a new one is there (then there is none)."""
        ...

    def close(self) -> None:
        """Let all workers go."""
        ...


@dataclass
class Job:
    """Something that asks for evidence, and the tasks that it waits for."""

    begin: Callable[[], object]
    lacks: set[str] = field(default_factory=set)
    went_on: bool = False
    """Whether this is not its first task."""


class DistributedEngine:
    """An engine whose workers compute, and whose driver alone writes the store."""

    def __init__(self, hire: Callable[[], WorkerPool]) -> None:
        self._hire = hire
        self._hands: WorkerPool | None = None
        self._known: dict[Loading, Described] = {}
        self._failed: dict[str, Failure] = {}
        self._asked: WeakKeyDictionary[LoadedModel, Loading] = WeakKeyDictionary()
        self._lending: DriverStore | None = None
        self._queue = Queue()

    # what a run asks of an engine

    def loaded_model(self, name: str, *, dtype: str, device: str, store: Store | None) -> LoadedModel:
        """A model as a worker has described it; its weights stay there."""
        loading = Loading(name, dtype, device)
        task = Describing(loading)
        if task.id in self._failed:
            raise again(self._failed[task.id])
        if loading not in self._known:
            raise Missing((task,))
        known = self._known[loading]
        found = LoadedModel(
            name,
            lambda: _no_weights(name),
            known.tokenizer,
            known.anatomy,
            known.form,
            known.dtype,
            torch.device(known.device),
            revision=known.revision,
            known_fingerprint=known.fingerprint,
            weights=known.weights,
        )
        self._asked[found] = loading
        return found

    def session(self, loaded_model: LoadedModel, store: Store | None, *, first: int = 0) -> Session:
        if self._lending is None:
            self._lending = DriverStore(store)
        if self._lending.behind != store:
            raise ValueError(f"this engine keeps evidence in {self._lending.behind}, and cannot in {store} as well")
        shelf = shelf_of(self._lending, loaded_model=loaded_model.fingerprint, dtype=loaded_model.dtype)
        bench = Workbench(loaded_model, shelf, first=first)
        return Session(loaded_model, bench.prompts, DriverSource(bench, self._asked[loaded_model], self._failed))

    def finish(self, job: Callable[[], Out]) -> Out:
        found: list[Out] = []
        self._run(iter([lambda: found.append(job())]))
        return found[-1]

    def prepare(self, jobs: Iterable[Callable[[], object]]) -> None:
        """Errors of a job are left to those who do it in earnest."""
        self._run(partial(_quiet, job) for job in jobs)

    def close(self) -> None:
        """Let the workers go."""
        if self._hands is not None:
            self._hands.close()
            self._hands = None

    # giving out and taking in

    def _run(self, jobs: Iterator[Callable[[], object]]) -> None:
        """Begin jobs while workers may run out of tasks, and go on with those that lack nothing any more."""
        waiting: list[Job] = []
        with Progress(self._queue) as progress:
            while True:
                self._give_out()
                begun = next(jobs, None) if self._hungry else None
                if begun is not None:
                    ready = [Job(begun)]
                elif waiting:
                    done = self._take_in()
                    for job in waiting:
                        job.lacks -= done
                    ready = [job for job in waiting if not job.lacks]
                    progress.tell(len(done))
                else:
                    return
                waiting = [job for job in waiting if job.lacks] + [job for job in ready if self._lacks(job)]

    @property
    def _hungry(self) -> bool:
        """Whether fewer tasks wait than every worker needs to have a choice."""
        return len(self._queue.waiting) < AHEAD * (1 if self._hands is None else self._hands.count)

    def _lacks(self, job: Job) -> bool:
        """Go on with a job; whether it has come to something that is not there."""
        try:
            job.begin()
        except Missing as missing:
            job.lacks = {task.id for task in missing.tasks}
            self._queue.add(missing.tasks, urgent=job.went_on)
        job.went_on = True
        return bool(job.lacks)

    def _give_out(self) -> None:
        """A task to every worker that is idle, as far as there are any."""
        if not self._queue.waiting:
            return
        if self._hands is None:
            self._hands = self._hire()
        for worker in self._hands.idle():
            task = self._queue.begin(worker)
            if task is not None:
                self._hands.give(worker, task, self._tensors(task))

    def _tensors(self, task: Task) -> Tensors:
        """The tensors that go with a task, to be read where the worker does not have them."""
        given = task.given if isinstance(task, Computing) else ()
        return {address: partial(self._read, address) for address in given}

    def _read(self, address: Address) -> Activations:
        assert self._lending is not None
        found = self._lending.get(Activations, *address)
        assert found is not None, f"{address} was there when the task was made"
        return found

    def _take_in(self) -> set[str]:
        """Wait for workers, and keep what they bring; the ids of the tasks that are done."""
        assert self._hands is not None
        done = set()
        for worker, outcome in self._hands.take():
            task = self._queue.end(worker)
            self._keep(task, outcome)
            done.add(task.id)
        return done

    def _keep(self, task: Task, outcome: Outcome) -> None:
        if isinstance(outcome, Failure):
            self._failed[task.id] = outcome
        elif isinstance(outcome, Described):
            self._known[task.loading] = outcome
        elif isinstance(task, Computing):
            if task.address not in outcome.found:
                self._failed[task.id] = Failure(_strange(task, outcome), "the driver, when it looked for the shard")
                return
            assert self._lending is not None
            content: Any  # of either kind; the store tells them by the ending of their files
            for (experiment, key), content in outcome.found.items():
                self._lending.put(experiment, key, content)


def _strange(task: Computing, outcome: Shards) -> ModelError:
    """What a worker brings belongs to another address than the driver's."""
    return ModelError(
        f"{task.loading.name}: the driver asked for {task.address}, and a worker brought {sorted(outcome.found)}. Its"
        " rebinding, torch or transformers is not the driver's, or its processor rounds the weights of a planted model"
        " otherwise. Install the same versions on all machines, of one kind."
    )


def _no_weights(name: str) -> NoReturn:
    raise ModelError(f"{name} is loaded on workers alone; nothing can be run on it in the driver")


def _quiet(job: Callable[[], object]) -> None:
    try:
        job()
    except Missing:
        raise
    except Exception:  # whatever it is, it comes again when the job is done in earnest
        return
