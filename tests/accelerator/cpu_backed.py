"""A fake device whose tensors are computed on the CPU, and the operations at which a program waits for it.

Its tensors have numbers, with the same kernels as the CPU's own, and still cannot be mixed with tensors on the CPU.

*Waits* are operations at which the program stops until the device has caught up: numbers come back to the CPU
(`.cpu()`, `.item()`, `.tolist()`, `bool()`), or the size of a result depends on numbers (`nonzero`, an index by a
mask).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rebinding.cost.fake_device import CPU, CachedResult, FakeDevice, FakeTensor
from rebinding.cost.ledger import OperationFacts, facts_of, leaves, map_tensors

UNWRITTEN = 101
"""The content of uninitialised memory where it cannot be NaN: far from any position, head or row of a test."""


@dataclass(frozen=True)
class Wait:
    """An operation that waits, and the functions of the package that it was called from, innermost first."""

    operation: str
    within: tuple[str, ...]


class CpuBackedDevice(FakeDevice):
    """A fake device with numbers. `waits` lists where the program waited for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[Wait] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _waits(operation, args, kwargs or {}):
            self.waits.append(Wait(str(operation), _callers()))
        return super().__torch_dispatch__(operation, types, args, kwargs)

    def run_to_cpu(self, operation: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        return operation(*map_tensors(_inner, args), **map_tensors(_inner, kwargs))

    def run_on_device(
        self, operation: Any, facts: OperationFacts, args: Any, kwargs: dict[str, Any], device: torch.device
    ) -> tuple[Any, CachedResult | None]:
        """Uninitialised memory holds NaN. No result is cached: it depends on numbers."""
        out, _ = super().run_on_device(operation, facts, args, kwargs, device)
        if facts.empty:
            out.inner_tensor.fill_(float("nan") if out.is_floating_point() else UNWRITTEN)
        return out, None

    def inner_arguments(self, facts: OperationFacts, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        args, kwargs = map_tensors(_inner, args), map_tensors(_inner, kwargs)
        return args, kwargs if kwargs.get("device") is None else {**kwargs, "device": CPU}


def _inner(tensor: Tensor) -> Tensor:
    return tensor.inner_tensor if isinstance(tensor, FakeTensor) else tensor


def _waits(operation: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether the program waits for numbers of a fake device."""
    if not any(isinstance(tensor, FakeTensor) for tensor in leaves((args, tuple(kwargs.values())))):
        return False
    facts = facts_of(operation)
    to_cpu = facts.copies and torch.device(kwargs.get("device") or args[0].device).type == "cpu"
    indices = leaves(args[1]) if facts.indexed else []
    masked = any(index.dtype == torch.bool and index.device.type != "cpu" for index in indices)
    return to_cpu or masked or facts.waits


def _callers() -> tuple[str, ...]:
    names = []
    frame = sys._getframe(2)
    while frame.f_back is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.startswith("rebinding.") and not module.startswith("rebinding.cost."):
            names.append(frame.f_code.co_name)
        frame = frame.f_back
    return tuple(names)
