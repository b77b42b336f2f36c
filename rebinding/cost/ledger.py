"""The cost of operations on a fake device: waits, FLOP, bytes moved, launches, and memory.

*Waits* are operations at which the program stops until the device has caught up: numbers come back to the CPU
(`.cpu()`, `.item()`, `.tolist()`, `bool()`), or the size of a result depends on numbers (`nonzero`, an index by a
mask). *FLOP* are those of torch's own counter, two per multiply-add. *Bytes moved* are those of operands and results
of all operations except views. *Launches* are the operations that compute, each one kernel or more: neither views nor
new memory. *Live* are the bytes of all storage on a device, by storage and not by tensor.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rebinding.cost.operations import Cost, facts_of, leaves


@dataclass(frozen=True)
class Wait:
    """An operation that waits, and the functions of this package that it was called from, innermost first."""

    operation: str
    within: tuple[str, ...]


@dataclass(eq=False)
class Ledger:
    """Costs since the start, or since `reset`. An operation takes the longer of its times at `rate` (FLOP a second) and
    at `bandwidth` (bytes a second)."""

    rate: float = float("inf")
    bandwidth: float = float("inf")
    waits: list[Wait] = field(default_factory=list)
    flop: int = 0
    bytes_moved: int = 0
    launches: int = 0
    seconds: float = 0.0
    live: Counter[torch.device] = field(default_factory=Counter)
    peak: Counter[torch.device] = field(default_factory=Counter)
    _storages: dict[int, weakref.ref[Any]] = field(default_factory=dict, repr=False)

    def add_wait(self, operation: Any, args: Sequence[Any], target: torch.device | None) -> None:
        """Add an operation on a device, if the program waits for it."""
        facts = facts_of(operation)
        to_cpu = facts.copies and (target or args[0].device).type == "cpu"
        indices = leaves(args[1]) if facts.indexed else []
        masked = any(index.dtype == torch.bool and index.device.type != "cpu" for index in indices)
        if to_cpu or masked or facts.waits:
            self.waits.append(Wait(str(operation), _callers()))

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
        self.waits, self.flop, self.bytes_moved, self.launches, self.seconds = [], 0, 0, 0, 0.0
        self.peak = Counter(self.live)


def _callers() -> tuple[str, ...]:
    names = []
    frame = sys._getframe(2)
    while frame.f_back is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.startswith("rebinding.") and not module.startswith("rebinding.cost."):
            names.append(frame.f_code.co_name)
        frame = frame.f_back
    return tuple(names)
