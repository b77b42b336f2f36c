"""A bench on the driver: it draws prompts, reads evidence, and says which tasks are to be done for what is not there.

A kind that is kept in blocks is cut into requests of one block each. Such a request has the block's own address, since
that follows from the prompts of the block and from the settings, and from nothing else of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from rebinding.engines.stores import Absent
from rebinding.engines.tasks import Address, Computing, Failure, Loading, Missing
from rebinding.evidence import Evidence, OnPrompts, Request
from rebinding.evidence.activations import Activations
from rebinding.study.bench import IN_BLOCKS, MEASURES, TENSORS, Bench


@dataclass(frozen=True, eq=False, kw_only=True)
class Distant(Bench):
    """A bench whose shelf is one of a `Lending` store. `failed` tells of tasks that could not be done."""

    loading: Loading
    failed: Mapping[str, Failure]

    def measured(self, request: Request) -> Evidence:
        """What is in the store; what is not there is `Missing`, all blocks of a request at once."""
        tasks = [task for part in parts(self, request) for task in self._lacking(part)]
        if tasks:
            raise Missing(tuple(tasks))
        return super().measured(request)

    def _lacking(self, part: Request) -> Iterator[Computing]:
        """What is to be done for a part that is not there: first the tensors it needs, if they are not there either."""
        try:
            super().measured(part)
        except Absent as absent:
            address = absent.address
        else:
            return
        tensors = {one: self._address(one) for one in averages_in(part)}
        first = [one for one, there in tensors.items() if not self._holds(there)]
        for one in first:
            yield self._task(Computing(self.loading, one, TENSORS[type(one)].__module__, tensors[one]))
        if not first:
            module = MEASURES[type(part)].__module__
            yield self._task(Computing(self.loading, part, module, address, tuple(tensors.values())))

    def _task(self, task: Computing) -> Computing:
        if task.id in self.failed:
            raise again(self.failed[task.id])
        return task

    def _address(self, request: Request) -> Address:
        return request.KIND.name, self._shelf(TENSORS[type(request)]).key(request.key)

    def _holds(self, address: Address) -> bool:
        assert self.shelf is not None
        try:
            return self.shelf.store.holds(Activations, *address)
        except Absent:
            return False


def parts(bench: Bench, request: Request) -> Iterator[Request]:
    """A request for each block, of a kind that is kept in blocks; else the request as it is."""
    size = IN_BLOCKS.get(type(request))
    if size is None:
        yield request
        return
    assert isinstance(request, OnPrompts)
    asked, block = request.prompts, size(request)
    for start in range(0, len(asked.ids), block):
        some = bench.draw(bench.plan(asked), asked.ids[start : start + block], asked.pairing, cut=asked.cut)
        yield replace(request, prompts=some)


def averages_in(value: Any) -> Iterator[Request]:
    """The requests for tensors that stand inside a request."""
    if isinstance(value, Request) and type(value) in TENSORS:
        yield value
    elif is_dataclass(value):
        for one in fields(value):
            yield from averages_in(getattr(value, one.name))
    elif isinstance(value, tuple):
        for part in value:
            yield from averages_in(part)


def again(failure: Failure) -> Exception:
    """The error of a worker, to be raised here; where it arose stands below it."""
    note = f"on a worker:\n{failure.told}"
    if note not in getattr(failure.error, "__notes__", ()):
        failure.error.add_note(note)
    return failure.error
