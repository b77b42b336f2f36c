"""Numbers that name heads, positions, rows and layers: integers, counted from 0, each once."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from rebinding.surgery.errors import NothingEdited, SurgeryError

Index: TypeAlias = int | Sequence[int] | Sequence[Sequence[int]] | Tensor

INTEGERS = frozenset(
    {torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64, torch.int64}
)
"""The types of tensors that hold whole numbers."""


def _integers(index: Index, what: str) -> Tensor:
    """An index as a tensor of integers. Floats are not rounded, and True is not 1: both are refused."""
    expected = f"{what} must be integers: a number, a range, a list, a table with lines of one length, or a tensor"
    try:
        table = torch.as_tensor(index)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SurgeryError(f"{expected}; got {reprlib.repr(index)}") from error
    if (table.numel() and table.dtype not in INTEGERS) or _has_bool(index):
        given = f"a tensor of {index.dtype}" if isinstance(index, Tensor) else reprlib.repr(index)
        raise SurgeryError(f"{expected}; got {given}")
    return table.long()


def _has_bool(index: object) -> bool:
    if isinstance(index, Tensor):
        return index.dtype == torch.bool
    return isinstance(index, bool) or (isinstance(index, (list, tuple)) and any(map(_has_bool, index)))


def index_table(index: Index, what: str) -> Tensor:
    """An index as a table: one line for all rows, or one line a row."""
    table = _integers(index, what)
    table = table.reshape(1, -1) if table.ndim < 2 else table  # (1 or rows, count)
    if table.ndim != 2 or table.numel() == 0:
        raise SurgeryError(
            f"{what} must be one index, a list of them, or a (rows, count) table; got shape {tuple(table.shape)}"
        )
    if int(table.min()) < 0:
        raise SurgeryError(f"{what} are counted from 0; got {int(table.min())}")
    ordered = table.sort(dim=1).values
    if bool((ordered[:, 1:] == ordered[:, :-1]).any()):
        raise SurgeryError(
            f"{what} name the same index twice in a row: the outcome would depend on the order of writes"
        )
    return table


def batch_rows(rows: Index, edit: str) -> Tensor:
    """The rows of the batch that an edit touches, each once: (touched rows,)."""
    numbers = _integers(rows, "rows").reshape(-1)
    if numbers.numel() == 0:
        raise NothingEdited(f"{edit} lists no rows")
    distinct = numbers.unique()
    if int(distinct[0]) < 0:
        raise SurgeryError(f"rows are counted from 0; {edit} lists row {int(distinct[0])}")
    if distinct.numel() != numbers.numel():
        raise SurgeryError(f"{edit} lists a row twice; list it once, or write two edits")
    return numbers


def layer_number(layer: int) -> int:
    """A layer as an integer."""
    try:
        number = operator.index(layer)
    except TypeError as error:
        raise SurgeryError(f"layer must be an integer; got {reprlib.repr(layer)}") from error
    if isinstance(layer, bool):
        raise SurgeryError(f"layer must be an integer; got {layer}")
    return number
