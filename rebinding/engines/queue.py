"""Which task goes to which worker: a model is loaded as seldom as may be, prompts that a worker has recorded are left
to it as long as others find anything else, and what much may follow from comes first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from tqdm import tqdm

from rebinding.engines.tasks import Computing, Loading, Task
from rebinding.evidence import OnPrompts, PromptSet

Recorded: TypeAlias = tuple[Loading, PromptSet]


@dataclass
class Queue:
    """Tasks that wait, and those that workers are at; each is here once, however many jobs ask for it."""

    waiting: dict[str, Task] = field(default_factory=dict)
    running: dict[int, Task] = field(default_factory=dict)
    loaded: dict[int, Loading] = field(default_factory=dict)
    """The model that each worker has, as far as is known here."""
    urgent: set[str] = field(default_factory=set)
    """Tasks that wait, of jobs that went on: much may still follow from them, and nothing else can run then."""
    had: dict[Recorded, set[int]] = field(default_factory=dict)
    """Who was given these prompts; a recording of them may still be there."""

    def add(self, tasks: Iterable[Task], *, urgent: bool) -> None:
        """Behind those that wait; each once."""
        at_work = {task.id for task in self.running.values()}
        new = {task.id: task for task in tasks if task.id not in at_work and task.id not in self.waiting}
        self.waiting |= new
        if urgent:
            self.urgent |= new.keys()

    def begin(self, worker: int) -> Task | None:
        """The next task of a worker that is idle, or none; it counts as begun."""
        task = self._next(worker)
        if task is not None:
            del self.waiting[task.id]
            self.urgent.discard(task.id)
            if (recorded := _recorded(task)) is not None:
                self.had.setdefault(recorded, set()).add(worker)
            self.running[worker], self.loaded[worker] = task, task.loading
        return task

    def end(self, worker: int) -> Task:
        """What the worker was at."""
        return self.running.pop(worker)

    def _next(self, worker: int) -> Task | None:
        """One on its own model; as long as others are at that model, more may come. Else one on a model that nobody
        has, and else the oldest."""
        own = self.loaded.get(worker)
        tasks = list(self.waiting.values())
        mine = [task for task in tasks if task.loading == own]
        if mine:
            return min(mine, key=partial(self._after, worker))
        if any(task.loading == own for task in self.running.values()):
            return None
        others = set(self.loaded.values())
        fresh = [task for task in tasks if task.loading not in others]
        return next(iter([*fresh, *tasks]), None)

    def _after(self, worker: int, task: Task) -> tuple[bool, bool, bool]:
        """What makes a task come later, the first thing first: that another worker has had its prompts, and would not
        have to run them again; that nobody waits for it; that its prompts are new to this one."""
        recorded = _recorded(task)
        owners = self.had.get(recorded, set()) if recorded else set()
        return bool(owners) and worker not in owners, task.id not in self.urgent, worker not in owners


def _recorded(task: Task) -> Recorded | None:
    """The model of a task and the prompts that it runs there, if it has any: with whatever they are paired, they are
    recorded once."""
    asked = task.request if isinstance(task, Computing) else None
    if not isinstance(asked, OnPrompts):
        return None
    return task.loading, replace(asked.prompts, pairing=(), tokens="")


class Progress:
    """One bar for all workers and models, from the first task that is done; on a terminal only."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._bar: tqdm[Any] | None = None

    def __enter__(self) -> Progress:
        return self

    def tell(self, done: int) -> None:
        """So many more are done; what is known to be left may grow as jobs go on."""
        if self._bar is None:
            self._bar = tqdm(desc="evidence", unit=" tasks", total=0, disable=None)
        self._bar.total = self._bar.n + done + len(self._queue.waiting) + len(self._queue.running)
        self._bar.update(done)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
