"""A cache of operations on hollow tensors: each is run once, and its result serves all operations like it.

A *hollow* tensor has shape, strides and dtype but no numbers: it is on torch's meta device. (A `FakeTensor` wraps one
and gives it a fake device.) The result of an operation then depends only on shapes, strides, dtypes and devices, and
the layers of a model and the batches of a block repeat the same ones. torch computes many of them in Python, at a
millisecond an operation, and a plan has millions. A cached result stands for tensors with the same shapes and strides,
in storage of their own, at the same cost. Only results whose first run showed that this is valid are cached. An index
by a mask depends on the mask's numbers and is never cached.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from rebinding.cost.operations import Cost, facts_of, leaves, map_tensors

META = torch.device("meta")


@dataclass(frozen=True, eq=False)
class CachedResult:
    """The result of an operation: views of its first argument, that argument itself, or new tensors like `example`."""

    kind: Literal["view", "in_place", "new"]
    device: torch.device
    cost: Cost
    example: Any = None


def cache_key(operation: Any, args: Any, kwargs: Mapping[str, Any]) -> Hashable:
    """Everything that the result of an operation on hollow tensors can depend on."""
    return operation, signature(args), signature(tuple(kwargs.items())) if kwargs else None


def signature(value: Any) -> Hashable:
    """A tensor as its shape, strides, dtype and device; a number with its type, as 1 equals True."""
    if isinstance(value, Tensor):
        return getattr(value, "signature", None) or tensor_signature(value, value.device)  # a FakeTensor stores it
    if isinstance(value, (list, tuple)):
        return tuple([signature(item) for item in value])
    return type(value), value


def tensor_signature(tensor: Tensor, device: torch.device) -> Hashable:
    """The signature of a tensor as if it were on this device."""
    return tensor.shape, tensor.stride(), tensor.dtype, device


def cacheable_result(operation: Any, args: Any, out: Any, device: torch.device, cost: Cost) -> CachedResult | None:
    """The result of an operation on hollow tensors, if it can be cached."""
    facts = facts_of(operation)
    if facts.in_place:
        return CachedResult("in_place", device, cost)
    if facts.view:
        return CachedResult("view", device, cost)
    results, inputs = leaves(out), leaves(args)
    result_storages, input_storages = set(map(_storage, results)), set(map(_storage, inputs))
    if inputs and result_storages == {_storage(inputs[0])}:  # a view, whatever its schema says
        return CachedResult("view", device, cost)
    is_dense = all(_storage_bytes(result) == _storage_bytes(hollow_like(result)) for result in results)
    has_own_storage = len(result_storages) == len(results) and not result_storages & input_storages
    return CachedResult("new", device, cost, map_tensors(hollow_like, out)) if is_dense and has_own_storage else None


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _storage_bytes(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes()


def hollow_like(tensor: Tensor) -> Tensor:
    """A hollow tensor with the same shape, strides and dtype, in storage of its own."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)
