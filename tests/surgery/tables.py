"""Edits and reads of one layer as tables of indices, for forward passes that know nothing of the surgeons."""

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
