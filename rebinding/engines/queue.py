"""The assignment of tasks to workers: models are loaded as rarely as possible, a worker gets the prompts that it has
recorded, and tasks that many others may follow come first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from tqdm import tqdm

from rebinding.engines.tasks import ComputeTask, LoadOptions, Task
from rebinding.evidence import OnPrompts, PromptSet

Recorded: TypeAlias = tuple[LoadOptions, PromptSet]


@dataclass
class Queue:
    """The tasks that wait and those that run; each is here once, however many jobs need it."""

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
    request = task.request if isinstance(task, ComputeTask) else None
    if not isinstance(request, OnPrompts):
        return None
    return task.load_options, replace(request.prompts, pairing=(), tokens="")


class Progress:
    """One progress bar for all workers and models, from the first finished task on; on a terminal only."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._bar: tqdm[Any] | None = None

    def __enter__(self) -> Progress:
        return self

    def tell(self, done: int) -> None:
        """Advance by `done` tasks; the total may grow as jobs continue."""
        if self._bar is None:
            self._bar = tqdm(desc="evidence", unit=" tasks", total=0, disable=None)
        self._bar.total = self._bar.n + done + len(self._queue.waiting) + len(self._queue.running)
        self._bar.update(done)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
