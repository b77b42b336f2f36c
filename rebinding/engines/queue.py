"""Which task goes to which worker: a model is loaded as seldom as may be, what other tasks wait for comes first, and of
several that may come a worker gets one whose prompts it has recorded already."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
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
    together: dict[str, int] = field(default_factory=dict)
    """Of each task that waits, with which others it came; what jobs ask for at first counts as one batch."""
    had: dict[Recorded, set[int]] = field(default_factory=dict)
    """Who was given these prompts; a recording of them may still be there."""
    _batches: Iterator[int] = field(default_factory=partial(count, 1))

    def add(self, tasks: Iterable[Task], *, first: bool) -> None:
        """Tasks of a job that went on come `first`: much may still follow from them, and nothing else can run then."""
        at_work = {task.id for task in self.running.values()}
        new = {task.id: task for task in tasks if task.id not in at_work and task.id not in self.waiting}
        self.waiting = new | self.waiting if first else self.waiting | new
        self.together |= dict.fromkeys(new, next(self._batches) if first else 0)

    def begin(self, worker: int) -> Task | None:
        """The next task of a worker that is idle, or none; it counts as begun."""
        task = self._next(worker)
        if task is not None:
            del self.waiting[task.id], self.together[task.id]
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
            batch = self.together[mine[0].id]
            return min((task for task in mine if self.together[task.id] == batch), key=partial(self._far, worker))
        if any(task.loading == own for task in self.running.values()):
            return None
        others = set(self.loaded.values())
        fresh = [task for task in tasks if task.loading not in others]
        return next(iter([*fresh, *tasks]), None)

    def _far(self, worker: int, task: Task) -> int:
        """0 where the worker has had the prompts of a task, 1 where nobody has, 2 where they are another's, who would
        not have to run them again."""
        recorded = _recorded(task)
        owners = None if recorded is None else self.had.get(recorded)
        return 1 if owners is None else 2 * (worker not in owners)


def _recorded(task: Task) -> Recorded | None:
    """The model of a task and the prompts that it runs there, if it has any: with whatever they are paired, they are
    recorded once."""
    asked = task.request if isinstance(task, Computing) else None
    if not isinstance(asked, OnPrompts):
        return None
    return task.loading, replace(asked.prompts, pairing=(), tokens="", words="", encoded=0)


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
