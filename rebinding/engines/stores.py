"""Where a worker keeps what it computes, and where the driver of workers has its evidence from.

The driver reads evidence, and says which tasks are to be done for what is not there. A task is a block of a request, or
tensors that a block needs; each has the address that it has in any store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from rebinding.engines.tasks import Address, Computing, Failure, Loading, Missing
from rebinding.evidence import Evidence, Request
from rebinding.evidence.activations import Activations
from rebinding.evidence.store import Content, Store
from rebinding.experiments.workbench import Workbench, function_of, tensor_requests


class Memory:
    """Shards that are kept as long as their process: those of a worker, until they are on their way to the driver."""

    def __init__(self) -> None:
        self.kept: dict[Address, object] = {}

    def holds(self, kind: type[Content], experiment: str, key: str) -> bool:
        return isinstance(self.kept.get((experiment, key)), kind)

    def get(self, kind: type[Content], experiment: str, key: str) -> Content | None:
        found = self.kept.get((experiment, key))
        return found if isinstance(found, kind) else None

    def put(self, experiment: str, key: str, content: Content) -> None:
        self.kept[experiment, key] = content

    def remember(self, kind: type[Content], experiment: str, key: str, compute: Callable[[], Content]) -> Content:
        found = self.get(kind, experiment, key)
        if found is None:
            found = compute()
            self.put(experiment, key, found)
        return found


class DriverStore:
    """The driver's store, as its benches see it: what is there is lent, and nothing is computed.

    `spare` holds what could not be written, on a full disk; or everything, where no evidence is to be kept.
    """

    def __init__(self, behind: Store | None = None) -> None:
        self.behind = behind
        self.spare = Memory()

    def holds(self, kind: type[Content], experiment: str, key: str) -> bool:
        return self.spare.holds(kind, experiment, key) or (
            self.behind is not None and self.behind.holds(kind, experiment, key)
        )

    def get(self, kind: type[Content], experiment: str, key: str) -> Content | None:
        found = self.spare.get(kind, experiment, key)
        return found if found is not None or self.behind is None else self.behind.get(kind, experiment, key)

    def put(self, experiment: str, key: str, content: Content) -> None:
        """As `Store.remember` keeps what was computed, and with its warning where that cannot be."""
        if self.behind is None:
            self.spare.put(experiment, key, content)
        else:
            kept = self.behind.remember(type(content), experiment, key, lambda: content)
            if not self.behind.holds(type(content), experiment, key):
                self.spare.put(experiment, key, kept)

    def remember(self, kind: type[Content], experiment: str, key: str, compute: Callable[[], Content]) -> Content:
        """The shard, which must be there: the driver asks for it only when it has what was lacking."""
        found = self.get(kind, experiment, key)
        if found is None:
            raise LookupError(f"{experiment}/{key} is not in the store, and the driver computes nothing")
        return found


@dataclass(frozen=True, eq=False)
class DriverSource:
    """Evidence of a bench whose shelf is one of a `Lending` store. `failed` tells of tasks that could not be done."""

    bench: Workbench
    loading: Loading
    failed: Mapping[str, Failure]

    def get(self, request: Request) -> Evidence:
        """What is in the store; what is not there is `Missing`, all blocks of a request at once."""
        tasks = [task for block in self.bench.prompts.blocks(request) for task in self._lacking(block)]
        if tasks:
            raise Missing(tuple(tasks))
        return self.bench.get(request)

    def _lacking(self, block: Request) -> Iterator[Computing]:
        """The tasks for a block that is not there: first the tensors it needs, if they are not there either."""
        if self.bench.holds(Evidence, block):
            return
        tensors = list(tensor_requests(block))
        first = [request for request in tensors if not self.bench.holds(Activations, request)]
        for request in first:
            yield self._task(request)
        if not first:
            yield self._task(block, tensors)

    def _task(self, request: Request, tensors: list[Request] | None = None) -> Computing:
        module = function_of(type(request)).__module__
        given = tuple(self.bench.address(needed) for needed in tensors or ())
        task = Computing(self.loading, request, module, self.bench.address(request), given)
        if task.id in self.failed:
            raise again(self.failed[task.id])
        return task


def again(failure: Failure) -> Exception:
    """The error of a worker, to be raised here; where it arose stands below it."""
    note = f"on a worker:\n{failure.told}"
    if note not in getattr(failure.error, "__notes__", ()):
        failure.error.add_note(note)
    return failure.error
