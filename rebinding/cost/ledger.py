"""The cost of operations on a fake device: FLOP, bytes moved, launches, time, and memory.

*FLOP* are those of torch's own counter, two per multiply-add. *Bytes moved* are those of operands and results of all
operations except views. *Launches* are the operations that compute, each one kernel or more: neither views nor new
memory. *Live* are the bytes of all storage on a device, by storage and not by tensor.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

ATEN = torch.ops.aten
COPIES = {ATEN.copy_.default, ATEN._to_copy.default}
INDEXED = {ATEN.index.Tensor, ATEN.index_put.default, ATEN.index_put_.default, ATEN._index_put_impl_.default}
"""Operations whose second argument is a list of indices, which may be on the CPU."""
EMPTY = {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided"}
"""Operations that return uninitialised memory."""
UNDECLARED_VIEWS = {ATEN._unsafe_view.default}
"""Views that their schema does not declare; every matrix product of a layer ends in one."""
WAITS = {
    ATEN._local_scalar_dense.default,
    ATEN.equal.default,
    ATEN.nonzero.default,
    ATEN.masked_select.default,
    ATEN._unique2.default,
    ATEN.unique_dim.default,
    ATEN.bincount.default,
    ATEN.repeat_interleave.Tensor,
}
"""Operations that wait for numbers of the device: they return a number, or the size of the result depends on one."""


@dataclass(frozen=True)
class OperationFacts:
    """What an operation does, whatever its arguments."""

    copies: bool
    indexed: bool
    waits: bool
    in_place: bool
    view: bool
    empty: bool
    gives_tensors: bool
    flop: Callable[..., int] | None


@cache
def facts_of(operation: Any) -> OperationFacts:
    """The facts of an operation, computed once."""
    schema = operation._schema
    written = [value.alias_info.is_write for value in schema.returns if value.alias_info is not None]
    return OperationFacts(
        copies=operation in COPIES,
        indexed=operation in INDEXED,
        waits=operation in WAITS,
        in_place=any(written),
        view=(bool(written) and not any(written)) or operation in UNDECLARED_VIEWS,
        empty=schema.name in EMPTY,
        gives_tensors=any("Tensor" in str(value.type) for value in schema.returns),
        flop=flop_registry.get(operation._overloadpacket),
    )


@dataclass(frozen=True)
class Cost:
    """FLOP by torch's own counter, the bytes of operands and results (`bytes_moved`), and whether the device launches a
    kernel for it; a view has none of them."""

    flop: int
    bytes_moved: int
    launches: int = 1


NOTHING = Cost(0, 0, 0)


def cost_of(operation: Any, args: Any, kwargs: dict[str, Any], out: Any) -> Cost:
    """The cost of an operation with these arguments and this result."""
    facts = facts_of(operation)
    if facts.view:
        return NOTHING
    flop = int(facts.flop(*args, **kwargs, out_val=out)) if facts.flop else 0
    bytes_moved = sum(tensor.nbytes for tensor in leaves((args, out)))
    return Cost(flop, bytes_moved, 0 if facts.empty else 1)


@dataclass(eq=False)
class Ledger:
    """Costs since the start, or since `reset`. An operation takes the longer of its times at `rate` (FLOP a second) and
    at `bandwidth` (bytes a second)."""

    rate: float = float("inf")
    bandwidth: float = float("inf")
    flop: int = 0
    bytes_moved: int = 0
    launches: int = 0
    seconds: float = 0.0
    live: Counter[torch.device] = field(default_factory=Counter)
    peak: Counter[torch.device] = field(default_factory=Counter)
    _storages: dict[int, weakref.ref[Any]] = field(default_factory=dict, repr=False)

    def add_work(self, cost: Cost) -> None:
        """Add the cost of an operation."""
        self.flop, self.bytes_moved = self.flop + cost.flop, self.bytes_moved + cost.bytes_moved
        self.launches += cost.launches
        self.seconds += max(cost.flop / self.rate, cost.bytes_moved / self.bandwidth)

    def add_storage(self, inner_tensor: Tensor, device: torch.device) -> None:
        """Count a tensor's storage, once, for as long as it lives."""
        storage = inner_tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._storages:
            return

        def free(_: Any) -> None:
            del self._storages[key]
            self.live[device] -= size

        self._storages[key] = weakref.ref(storage, free)
        self.live[device] += size
        self.peak[device] = max(self.peak[device], self.live[device])

    def reset(self) -> None:
        """Set all counts to 0, and the peak to the storage that is alive."""
        self.flop, self.bytes_moved, self.launches, self.seconds = 0, 0, 0, 0.0
        self.peak = Counter(self.live)


def leaves(value: Any) -> list[Tensor]:
    """The tensors among an operation's arguments or results."""
    tensors: list[Tensor] = []
    for item in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(item, Tensor):
            tensors.append(item)
        elif isinstance(item, (list, tuple)):
            tensors += leaves(item)
    return tensors


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """The same arguments, keywords or results with `function` applied to every tensor."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(function, item) for item in value)
    if isinstance(value, dict):
        return {name: map_tensors(function, item) for name, item in value.items()}
    return value
