"""Operations on tensors without numbers, each worked out once for all that are alike.

Without numbers a result hangs on shapes, strides, dtypes and devices alone, and the layers of a model and the batches
of a block repeat the same ones. torch works many of them out in Python, at a millisecond an operation, and a plan makes
millions. So what came of an operation is kept, and made again: results with the same shapes and strides, in storage of
their own, at the same cost. Kept is only what its first run showed to be of that kind; an index by a mask hangs on the
mask's numbers and never is.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from rebinding.cost.operations import Cost, known, leaves, mapped

SHAPES = torch.device("meta")


@dataclass(frozen=True, eq=False)
class Outcome:
    """What came of an operation: views of its first argument, that argument itself, or new tensors like `example`."""

    kind: Literal["view", "in_place", "new"]
    place: torch.device
    cost: Cost
    example: Any = None


def question(operation: Any, args: Any, named: Mapping[str, Any]) -> Hashable:
    """All that the outcome of an operation on hollow tensors can hang on."""
    return operation, form(args), form(tuple(named.items())) if named else None


def form(value: Any) -> Hashable:
    """A tensor as its shape, strides, dtype and device; a number with its type, as 1 equals True."""
    if isinstance(value, Tensor):
        return getattr(value, "form", None) or form_of(value, value.device)  # a pretended one knows it
    if isinstance(value, (list, tuple)):
        return tuple([form(one) for one in value])
    return type(value), value


def form_of(held: Tensor, device: torch.device) -> Hashable:
    """The form of a tensor that says that it is on a device."""
    return held.shape, held.stride(), held.dtype, device


def outcome(operation: Any, args: Any, out: Any, place: torch.device, cost: Cost) -> Outcome | None:
    """What is to be kept of an operation on held tensors, if anything."""
    what = known(operation)
    if what.in_place:
        return Outcome("in_place", place, cost)
    if what.view:
        return Outcome("view", place, cost)
    made, given = leaves(out), leaves(args)
    own, others = set(map(_storage, made)), set(map(_storage, given))
    if given and own == {_storage(given[0])}:  # a view, whatever its schema says
        return Outcome("view", place, cost)
    full = all(one.untyped_storage().nbytes() == hollow_like(one).untyped_storage().nbytes() for one in made)
    alone = len(own) == len(made) and not own & others
    return Outcome("new", place, cost, mapped(hollow_like, out)) if full and alone else None


def _storage(one: Tensor) -> int:
    return int(one.untyped_storage()._cdata)


def hollow_like(one: Tensor) -> Tensor:
    """A tensor without numbers in the same shape, in storage of its own."""
    return torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=SHAPES)
