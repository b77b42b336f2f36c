"""What is known of an operation of torch beforehand, and how its arguments are walked through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

ATEN = torch.ops.aten
COPIES = {ATEN.copy_.default, ATEN._to_copy.default}
INDEXED = {ATEN.index.Tensor, ATEN.index_put.default, ATEN.index_put_.default, ATEN._index_put_impl_.default}
"""Operations whose second argument is a list of indices, which may stand on the CPU."""
EMPTY = {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided"}
"""Operations that return memory as it is."""
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
"""Operations that need numbers of the device to go on: a number comes back, or the size of the result hangs on it."""


@dataclass(frozen=True)
class Known:
    """What an operation does, whatever it is given."""

    copies: bool
    indexed: bool
    waits: bool
    in_place: bool
    view: bool
    empty: bool
    gives_tensors: bool
    flop: Callable[..., int] | None


@cache
def known(operation: Any) -> Known:
    """The facts of an operation, worked out once."""
    schema = operation._schema
    written = [one.alias_info.is_write for one in schema.returns if one.alias_info is not None]
    return Known(
        copies=operation in COPIES,
        indexed=operation in INDEXED,
        waits=operation in WAITS,
        in_place=any(written),
        view=bool(written) and not any(written),
        empty=operation._schema.name in EMPTY,
        gives_tensors=any("Tensor" in str(one.type) for one in schema.returns),
        flop=flop_registry.get(operation._overloadpacket),
    )


@dataclass(frozen=True)
class Cost:
    """FLOP by torch's own counter, and the bytes of operands and results; a view has neither."""

    flop: int
    moved: int


NOTHING = Cost(0, 0)


def cost_of(operation: Any, args: Any, named: dict[str, Any], out: Any) -> Cost:
    """What an operation computed and moved."""
    what = known(operation)
    if what.view:
        return NOTHING
    flop = int(what.flop(*args, **named, out_val=out)) if what.flop else 0
    return Cost(flop, sum(one.nbytes for one in leaves((args, out))))


def leaves(value: Any) -> list[Tensor]:
    """The tensors among an operation's arguments or results."""
    found: list[Tensor] = []
    for one in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(one, Tensor):
            found.append(one)
        elif isinstance(one, (list, tuple)):
            found += leaves(one)
    return found


def mapped(function: Callable[[Tensor], Any], value: Any) -> Any:
    """The same arguments or results with every tensor exchanged."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(function, one) for one in value)
    return value
