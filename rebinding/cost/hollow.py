"""What a hollow tensor answers when a program asks it for numbers.

Booleans are true: whatever was edited moved, so nothing is left out as still, and what is counted is the most that a
run may have to do. Floats are drawn between a half and one, anew each time: among scores some heads come out lowest, as
they would. Whole numbers are zero.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rebinding.cost.operations import ATEN

DICE = torch.Generator().manual_seed(0)


def numbers(like: Tensor, dtype: torch.dtype) -> Tensor:
    """Made-up numbers on the CPU, in the shape of a tensor."""
    shape = tuple(like.shape)
    if dtype == torch.bool:
        return torch.ones(shape, dtype=dtype)
    if dtype.is_floating_point:
        return torch.empty(shape).uniform_(0.5, 1.0, generator=DICE).to(dtype)
    return torch.zeros(shape, dtype=dtype)


def made_up(operation: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """What an operation gives that brings numbers of a hollow tensor back to the CPU."""
    if operation is ATEN.copy_.default:
        return args[0].copy_(numbers(args[1], args[0].dtype))
    if operation is ATEN._to_copy.default:
        return numbers(args[0], named.get("dtype") or args[0].dtype)
    if operation is ATEN._local_scalar_dense.default:
        return numbers(args[0], args[0].dtype).item()
    if operation is ATEN.equal.default:
        return True
    raise NotImplementedError(
        f"{operation} asks a hollow tensor of shape {tuple(args[0].shape)} for numbers: say in "
        "rebinding/cost/hollow.py what it shall answer"
    )


def without_masks(indices: Any) -> list[Any]:
    """Indices in which masks of the CPU are told apart into numbers; how many entries another has is unknown."""
    found: list[Any] = []
    for one in indices:
        if one is None or one.dtype != torch.bool:
            found.append(one)
        elif one.device.type == "cpu":
            found += one.nonzero(as_tuple=True)
        else:
            raise NotImplementedError(
                f"a hollow mask of shape {tuple(one.shape)} is an index: nobody knows how many it has"
            )
    return found
