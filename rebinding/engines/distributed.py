"""The driver: jobs request evidence, workers compute what is missing, and a job continues when nothing is missing.

A job that requests missing evidence stops with `MissingOutcomes`, which names the tasks to do first. When they are
done the job starts again, and finds everything up to that point in the store. So dependent tasks run in the order of
the job's requests, and the tasks of other jobs run at the same time. No job declares its requests beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

from tqdm import tqdm

from rebinding.engines.on_ray import RayWorkerPool
from rebinding.engines.worker import Address, LoadOptions, Memory, Task, TaskOutcome
from rebinding.evidence import Evidence, OnPrompts, PromptSet, Request
from rebinding.evidence.store import Activations, Content, Store
from rebinding.experiments.table import experiment_of
from rebinding.experiments.workbench import Workbench, tensor_requests
from rebinding.models import LoadedModel, ModelError
from rebinding.study.engine import Engine, Session

Out = TypeVar("Out")
Job: TypeAlias = Callable[[], object]
"""A function that requests evidence."""
Recorded: TypeAlias = tuple[LoadOptions, PromptSet]
AHEAD = 4
"""Tasks per worker that should wait, so that a worker can choose those whose prompts it has recorded."""


class MissingOutcomes(Exception):
    """A job needs the outcomes of these tasks to continue."""

    def __init__(self, tasks: tuple[Task, ...]) -> None:
        super().__init__(f"{len(tasks)} tasks must be done first")
        self.tasks = tasks


class DistributedEngine(Engine):
    """An engine whose workers compute and whose driver writes the store."""

    is_local = False

    def __init__(self, create_pool: Callable[[], RayWorkerPool]) -> None:
        self._create_pool = create_pool
        self._pool: RayWorkerPool | None = None
        self._models: dict[LoadOptions, LoadedModel] = {}
        self._failed: dict[str, Exception] = {}
        self._store: DriverStore | None = None
        self._queue = Queue()

    # the interface of an engine

    def loaded_model(self, name: str, *, dtype: str, device: str, store: Store | None) -> LoadedModel:
        """A model from a worker's description; its weights stay on workers."""
        load_options = LoadOptions(name, dtype, device)
        if load_options not in self._models:
            task = Task(load_options, None, "", ("model", repr(load_options)))
            if task.id in self._failed:
                raise self._failed[task.id]
            raise MissingOutcomes((task,))
        return self._models[load_options]

    def session(self, loaded_model: LoadedModel, store: Store | None, *, skip_prompts: int = 0) -> Session:
        if self._store is None:
            self._store = DriverStore(store)
        if self._store.folder != store:
            raise ValueError(f"this engine keeps evidence in {self._store.folder}; make another engine for {store}")
        bench = Workbench(loaded_model, self._store, skip_prompts=skip_prompts)
        load_options = next(options for options, model in self._models.items() if model is loaded_model)
        return Session(loaded_model, bench.prompts, DriverSource(bench, load_options, self._failed))

    def finish(self, job: Callable[[], Out]) -> Out:
        results: list[Out] = []
        self._run(iter([lambda: results.append(job())]))
        return results[-1]

    def prepare(self, jobs: Iterable[Job]) -> None:
        """Compute the evidence of jobs. Their errors are ignored here, and raised by `finish`."""
        self._run(partial(_run_quietly, job) for job in jobs)

    def close(self) -> None:
        """Stop the workers."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    # assigning tasks and collecting outcomes

    def _run(self, jobs: Iterator[Job]) -> None:
        """Start jobs while workers may run out of tasks, and continue those whose tasks are done.

        One progress bar for all workers and models, on a terminal only, from the first worker on (hence the delay, of
        next to nothing); its total may grow as jobs continue.
        """
        missing_ids: dict[Job, set[str]] = {}  # jobs that stopped, with the tasks that each waits for
        with tqdm(desc="evidence", unit=" tasks", total=0, disable=None, delay=1e-3) as bar:
            while True:
                self._assign_tasks()
                workers = 1 if self._pool is None else self._pool.count
                new_job = next(jobs, None) if len(self._queue.waiting) < AHEAD * workers else None
                if new_job is not None:
                    ready = [new_job]
                elif missing_ids:
                    done = self._collect_outcomes()
                    for ids in missing_ids.values():
                        ids -= done
                    ready = [job for job, ids in missing_ids.items() if not ids]
                    bar.total = bar.n + len(done) + len(self._queue.waiting) + len(self._queue.running)
                    bar.update(len(done))
                else:
                    return
                for job in ready:
                    was_resumed = missing_ids.pop(job, None) is not None
                    if ids := self._start(job, urgent=was_resumed):
                        missing_ids[job] = ids

    def _start(self, job: Job, *, urgent: bool) -> set[str]:
        """Start a job, or start it again; returns the ids of the tasks that it waits for."""
        try:
            job()
        except MissingOutcomes as missing:
            self._queue.add(missing.tasks, urgent=urgent)
            return {task.id for task in missing.tasks}
        return set()

    def _assign_tasks(self) -> None:
        """Give every idle worker a task, while there are tasks."""
        if not self._queue.waiting:
            return
        if self._pool is None:
            self._pool = self._create_pool()
        for worker in self._pool.idle():
            task = self._queue.begin(worker)
            if task is not None:
                self._pool.give(worker, task, self._read)

    def _read(self, address: Address) -> Activations:
        """An input tensor of a task."""
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

    def _record(self, task: Task, outcome: TaskOutcome) -> None:
        if isinstance(outcome, Exception):
            self._failed[task.id] = outcome
        elif isinstance(outcome, LoadedModel):
            self._models[task.load_options] = outcome
        elif task.address not in outcome:
            self._failed[task.id] = ModelError(
                f"{task.load_options.name}: the driver expected {task.address}, a worker returned {sorted(outcome)}."
                " The worker's version of rebinding, torch or transformers is not the driver's, or its processor rounds"
                " the weights of a planted model differently. Install the same versions on all machines, and use"
                " machines of one kind."
            )
        else:
            assert self._store is not None
            content: Any  # evidence or activations
            for address, content in outcome.items():
                self._store.put(*address, content)


def _run_quietly(job: Job) -> None:
    try:
        job()
    except MissingOutcomes:
        raise
    except Exception:  # `finish` raises it again
        return


@dataclass
class Queue:
    """The tasks that wait and those that run; each is here once, however many jobs need it.

    Models are loaded as rarely as possible, a worker gets the prompts that it has recorded, and tasks that many others
    may follow come first. So a free worker chooses its task; Ray's own queues give out the oldest one.
    """

    waiting: dict[str, Task] = field(default_factory=dict)
    running: dict[int, Task] = field(default_factory=dict)
    loaded_options: dict[int, LoadOptions] = field(default_factory=dict)
    """The model of each worker's last task."""
    urgent: set[str] = field(default_factory=set)
    """Waiting tasks of jobs that were resumed: many tasks may follow them, one after the other."""
    recorded_by: dict[Recorded, set[int]] = field(default_factory=dict)
    """The workers that ran these prompts, and may still have the recording."""

    def add(self, tasks: Iterable[Task], *, urgent: bool) -> None:
        """Append new tasks; each is added once."""
        running = {task.id for task in self.running.values()}
        new = {task.id: task for task in tasks if task.id not in running and task.id not in self.waiting}
        self.waiting |= new
        if urgent:
            self.urgent |= new.keys()

    def begin(self, worker: int) -> Task | None:
        """Start and return the next task of an idle worker; None if there is none for it."""
        task = self._next(worker)
        if task is not None:
            del self.waiting[task.id]
            self.urgent.discard(task.id)
            if (recorded := _recorded(task)) is not None:
                self.recorded_by.setdefault(recorded, set()).add(worker)
            self.running[worker], self.loaded_options[worker] = task, task.load_options
        return task

    def end(self, worker: int) -> Task:
        """Remove and return the worker's running task."""
        return self.running.pop(worker)

    def _next(self, worker: int) -> Task | None:
        """A task on the worker's own model; none while other workers use that model, as more may follow. Else a task on
        a model that no worker has, else the oldest."""
        own_model = self.loaded_options.get(worker)
        tasks = list(self.waiting.values())
        same_model = [task for task in tasks if task.load_options == own_model]
        if same_model:
            return min(same_model, key=partial(self._sort_key, worker))
        if any(task.load_options == own_model for task in self.running.values()):
            return None
        loaded_options = set(self.loaded_options.values())
        unloaded = [task for task in tasks if task.load_options not in loaded_options]
        return next(iter([*unloaded, *tasks]), None)

    def _sort_key(self, worker: int, task: Task) -> tuple[bool, bool, bool]:
        """Reasons to take a task later, the strongest first: another worker has recorded its prompts; it is not urgent;
        this worker has not recorded its prompts."""
        recorded = _recorded(task)
        owners = self.recorded_by.get(recorded, set()) if recorded else set()
        return bool(owners) and worker not in owners, task.id not in self.urgent, worker not in owners


def _recorded(task: Task) -> Recorded | None:
    """The model of a task and its prompts, if it has any, without their pairing: they are recorded once for all
    pairings."""
    if not isinstance(task.request, OnPrompts):
        return None
    return task.load_options, replace(task.request.prompts, pairing=(), tokens="")


class DriverStore(Memory):
    """The driver's store, for its workbenches: it reads shards and computes nothing."""

    def remember(self, kind: type[Content], experiment: str, key: str, compute: Callable[[], Content]) -> Content:
        """The shard, which must exist: the driver reads it only after workers have computed it."""
        content = self.get(kind, experiment, key)
        if content is None:
            raise LookupError(f"{experiment}/{key} is not in the store, and the driver computes nothing")
        return content


@dataclass(frozen=True, eq=False)
class DriverSource:
    """Evidence of a workbench on a `DriverStore`. `failed` has the errors of tasks.

    A task is a block of a request, or tensors that a block needs; each has the same address in every store.
    """

    bench: Workbench
    load_options: LoadOptions
    failed: Mapping[str, Exception]

    def get(self, request: Request) -> Evidence:
        """Evidence from the store; raises `MissingOutcomes` with the tasks of all missing blocks."""
        tasks = [task for block in self.bench.prompts.blocks(request) for task in self._missing_tasks(block)]
        if tasks:
            raise MissingOutcomes(tuple(tasks))
        return self.bench.get(request)

    def _missing_tasks(self, block: Request) -> list[Task]:
        """The tasks for a missing block: first the tensors it needs, if they are missing too."""
        if self.bench.holds(Evidence, block):
            return []
        tensors = list(tensor_requests(block))
        missing = [request for request in tensors if not self.bench.holds(Activations, request)]
        return [self._task(request) for request in missing] or [self._task(block, tensors)]

    def _task(self, request: Request, tensors: Iterable[Request] = ()) -> Task:
        module = experiment_of(type(request)).run.__module__
        inputs = tuple(self.bench.address(needed) for needed in tensors)
        task = Task(self.load_options, request, module, self.bench.address(request), inputs)
        if task.id in self.failed:
            raise self.failed[task.id]
        return task
