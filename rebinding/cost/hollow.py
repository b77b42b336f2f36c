"""Fake numbers for hollow tensors, where a program needs numbers.

Booleans are true: every edit changes something, so no edit is skipped as a no-op, and the cost is the most that a run
may take. Floats are random between a half and one: among scores some heads come out lowest, as in a run. Whole numbers
are zero.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rebinding.cost.operations import ATEN

DICE = torch.Generator().manual_seed(0)


def numbers(like: Tensor, dtype: torch.dtype) -> Tensor:
    """Fake numbers on the CPU, in the shape of a tensor."""
    shape = tuple(like.shape)
    if dtype == torch.bool:
        return torch.ones(shape, dtype=dtype)
    if dtype.is_floating_point:
        return torch.empty(shape).uniform_(0.5, 1.0, generator=DICE).to(dtype)
    return torch.zeros(shape, dtype=dtype)


def fake_numbers(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of an operation that copies numbers of a hollow tensor to the CPU."""
    if operation is ATEN.copy_.default:
        return args[0].copy_(numbers(args[1], args[0].dtype))
    if operation is ATEN._to_copy.default:
        return numbers(args[0], kwargs.get("dtype") or args[0].dtype)
    if operation is ATEN._local_scalar_dense.default:
        return numbers(args[0], args[0].dtype).item()
    if operation is ATEN.equal.default:
        return True
    raise NotImplementedError(
        f"{operation} needs numbers of a hollow tensor of shape {tuple(args[0].shape)}: add a case for it to "
        "rebinding/cost/hollow.py"
    )


def expand_masks(indices: Any) -> list[Any]:
    """Indices with masks of the CPU replaced by positions; the number of true entries of a hollow mask is unknown."""
    expanded: list[Any] = []
    for index in indices:
        if index is None or index.dtype != torch.bool:
            expanded.append(index)
        elif index.device.type == "cpu":
            expanded += index.nonzero(as_tuple=True)
        else:
            raise NotImplementedError(
                f"a hollow mask of shape {tuple(index.shape)} is an index: its number of true entries is unknown"
            )
    return expanded
