"""Edits and reads of one layer, carried out cell by cell: for forward passes that know nothing of the surgeons."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from rebinding.surgery import Edit, Read, in_layer
from rebinding.surgery.sites import HEADLESS, Heads, Index


def place(site: Any, layer: int, heads: Index | None, *, scope: str | None = "group") -> dict[str, Any]:
    """The arguments that say where an edit or a read is: a layer or its heads, and at keys and values a scope."""
    if site in HEADLESS:
        return {} if site == "logits" else {"layer": layer}
    assert heads is not None
    where: dict[str, Any] = {"head": in_layer(layer, heads)}
    return where | {"scope": scope} if site in ("k", "v") else where


def layer_of(item: Edit | Read) -> int:
    """The only layer of an edit or a read."""
    if item.head is None:
        return -1 if item.layer is None else item.layer
    (layer,) = set(_pairs(item.head)[..., 0].flatten().tolist())
    return int(layer)


def heads_of(item: Edit | Read) -> Tensor | None:
    """Its heads (1 or row, head)."""
    return None if item.head is None else _pairs(item.head)[..., 1]


def positions_of(item: Edit | Read) -> Tensor:
    """Its positions (1 or row, position)."""
    table = torch.as_tensor(cast("Index", item.at))
    return table.reshape(-1, table.shape[-1] if table.ndim else 1)


def _pairs(head: Heads) -> Tensor:
    pairs = torch.as_tensor(head)
    return pairs.reshape(-1, *pairs.shape[-2:]) if pairs.ndim > 1 else pairs.reshape(1, 1, 2)  # (1 or row, head, 2)


def edit_cells(value: Tensor, edit: Edit) -> Tensor:
    """A copy of a site with the cells of an edit rewritten, one by one."""
    value = value.clone()
    rows = list(range(value.shape[0])) if edit.rows is None else torch.as_tensor(edit.rows).tolist()
    table = heads_of(edit)
    heads = None if table is None else table.expand(len(rows), -1).tolist()
    positions = positions_of(edit).expand(len(rows), -1).tolist()
    inner = (len(positions[0]),) if heads is None else (len(heads[0]), len(positions[0]))
    new = edit.value.expand(len(rows), *inner, value.shape[-1])
    mask = torch.ones(inner, dtype=torch.bool) if edit.where is None else edit.where
    mask = mask.expand(len(rows), *inner)
    for i, row in enumerate(rows):
        for j, position in enumerate(positions[i]):
            for h, head in enumerate(heads[i] if heads else [None]):
                cell = (row, position) if head is None else (row, head, position)
                line = (i, j) if head is None else (i, h, j)
                if mask[line]:
                    value[cell] = value[cell] + new[line] if edit.mode == "add" else new[line]
    return value


def read_cells(value: Tensor, read: Read) -> Tensor:
    """The cells of a read: (row, [head,] position, width)."""
    n = value.shape[0]
    positions, heads = positions_of(read).expand(n, -1), heads_of(read)
    if heads is None:
        return torch.stack([value[row, positions[row]] for row in range(n)])
    heads = heads.expand(n, -1)
    return torch.stack([value[row][heads[row]][:, positions[row]] for row in range(n)])
