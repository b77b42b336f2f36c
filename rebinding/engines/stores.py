"""The memory of a worker, and the store and evidence source of the driver.

The driver reads evidence, and raises the tasks that compute missing evidence. A task is a block of a request, or
tensors that a block needs; each has the same address in every store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from rebinding.engines.tasks import Address, ComputeTask, Failure, LoadOptions, MissingOutcomes
from rebinding.evidence import Evidence, Request
from rebinding.evidence.activations import Activations
from rebinding.evidence.store import Content, Store
from rebinding.experiments.table import experiment_of
from rebinding.experiments.workbench import Workbench, tensor_requests


class Memory:
    """Shards in memory: those of a worker, until it has sent them to the driver."""

    def __init__(self) -> None:
        self.shards: dict[Address, object] = {}

    def holds(self, kind: type[Content], experiment: str, key: str) -> bool:
        return isinstance(self.shards.get((experiment, key)), kind)

    def get(self, kind: type[Content], experiment: str, key: str) -> Content | None:
        content = self.shards.get((experiment, key))
        return content if isinstance(content, kind) else None

    def put(self, experiment: str, key: str, content: Content) -> None:
        self.shards[experiment, key] = content

    def remember(self, kind: type[Content], experiment: str, key: str, compute: Callable[[], Content]) -> Content:
        content = self.get(kind, experiment, key)
        if content is None:
            content = compute()
            self.put(experiment, key, content)
        return content


class DriverStore:
    """The driver's store, for its workbenches: it reads shards and computes nothing.

    `spare` has the shards that could not be written, on a full disk; or all shards, without a folder.
    """

    def __init__(self, folder: Store | None = None) -> None:
        self.folder = folder
        self.spare = Memory()

    def holds(self, kind: type[Content], experiment: str, key: str) -> bool:
        return self.spare.holds(kind, experiment, key) or (
            self.folder is not None and self.folder.holds(kind, experiment, key)
        )

    def get(self, kind: type[Content], experiment: str, key: str) -> Content | None:
        content = self.spare.get(kind, experiment, key)
        return content if content is not None or self.folder is None else self.folder.get(kind, experiment, key)

    def put(self, experiment: str, key: str, content: Content) -> None:
        """Store content as `Store.remember` does, with its warning where the folder cannot be written."""
        if self.folder is None:
            self.spare.put(experiment, key, content)
        else:
            stored = self.folder.remember(type(content), experiment, key, lambda: content)
            if not self.folder.holds(type(content), experiment, key):
                self.spare.put(experiment, key, stored)

    def remember(self, kind: type[Content], experiment: str, key: str, compute: Callable[[], Content]) -> Content:
        """The shard, which must exist: the driver reads it only after workers have computed it."""
        content = self.get(kind, experiment, key)
        if content is None:
            raise LookupError(f"{experiment}/{key} is not in the store, and the driver computes nothing")
        return content


@dataclass(frozen=True, eq=False)
class DriverSource:
    """Evidence of a workbench on a `DriverStore`. `failed` has the tasks that raised an error."""

    bench: Workbench
    load_options: LoadOptions
    failed: Mapping[str, Failure]

    def get(self, request: Request) -> Evidence:
        """Evidence from the store; raises `MissingOutcomes` with the tasks of all missing blocks."""
        tasks = [task for block in self.bench.prompts.blocks(request) for task in self._missing_tasks(block)]
        if tasks:
            raise MissingOutcomes(tuple(tasks))
        return self.bench.get(request)

    def _missing_tasks(self, block: Request) -> Iterator[ComputeTask]:
        """The tasks for a missing block: first the tensors it needs, if they are missing too."""
        if self.bench.holds(Evidence, block):
            return
        tensors = list(tensor_requests(block))
        missing = [request for request in tensors if not self.bench.holds(Activations, request)]
        for request in missing:
            yield self._task(request)
        if not missing:
            yield self._task(block, tensors)

    def _task(self, request: Request, tensors: list[Request] | None = None) -> ComputeTask:
        module = experiment_of(type(request)).run.__module__
        inputs = tuple(self.bench.address(needed) for needed in tensors or ())
        task = ComputeTask(self.load_options, request, module, self.bench.address(request), inputs)
        if task.id in self.failed:
            raise reraisable(self.failed[task.id])
        return task


def reraisable(failure: Failure) -> Exception:
    """The error of a worker, with the worker's traceback as a note."""
    note = f"on a worker:\n{failure.traceback}"
    if note not in getattr(failure.error, "__notes__", ()):
        failure.error.add_note(note)
    return failure.error
