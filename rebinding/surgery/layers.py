"""Edits and reads layer by layer, with tables of indices: the form in which surgeons carry them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from rebinding.surgery.anatomy import Anatomy
from rebinding.surgery.sites import (
    AFTER_LAYERS,
    HEADLESS,
    KEYED,
    At,
    Edit,
    Heads,
    Index,
    LogitsOf,
    Mode,
    Read,
    Reduce,
    Scope,
    Site,
    SurgeryError,
    batch_rows,
    has_names,
    head_table,
    index_table,
    integers,
    is_one_head,
    is_one_position,
    layer_number,
)


@dataclass(frozen=True, eq=False)
class LayerEdit:
    """An edit in one layer. `heads` and `positions` are tables, with one line for all rows or one a row; `value`
    broadcasts to (row, [head,] position, width), `where` to the same without width."""

    site: Site
    layer: int
    value: Tensor
    positions: Tensor
    heads: Tensor | None = None
    rows: Tensor | None = None
    mode: Mode = "set"
    scope: Scope | None = None
    where: Tensor | None = None


@dataclass(frozen=True, eq=False)
class LayerRead:
    """A read in one layer, with tables as in `LayerEdit`. Keys and values are those of KV heads."""

    site: Site
    layer: int
    positions: Tensor
    heads: Tensor | None = None
    reduce: Reduce | None = None


def split_edit(anatomy: Anatomy, edit: Edit, length: int) -> list[LayerEdit]:
    """An edit of prompts of `length` tokens, layer by layer."""
    positions = position_table(edit.at, length)
    value, where = with_all_axes(to_tensor(edit.value), edit, ("width",)), edit.where
    where = None if where is None else with_all_axes(where, edit, ())
    rows = None if edit.rows is None else batch_rows(edit.rows, f"an edit at {edit.site}")
    if edit.head is None:
        return [LayerEdit(edit.site, _layer(anatomy, edit), value, positions, None, rows, edit.mode, edit.scope, where)]
    parts, count = [], head_table(edit.head).shape[1]
    for layer, columns, heads in heads_by_layer(anatomy, edit.head, edit.site, edit.scope):
        own = _columns(value, columns, count) if value.ndim == 4 else value
        own = own if edit.site in KEYED else _narrowed(own, anatomy.parts[layer].head_dim)
        mask = _columns(where, columns, count) if where is not None and where.ndim == 3 else where
        parts.append(LayerEdit(edit.site, layer, own, positions, heads, rows, edit.mode, edit.scope, mask))
    return parts


def split_read(anatomy: Anatomy, read: Read, length: int) -> list[LayerRead]:
    """A read of prompts of `length` tokens, layer by layer; `join_read` puts the values together."""
    if read.site == "answers":
        raise SurgeryError(
            "answers are known to prompts that have some: read them with a rebinding.Recording, or read 'logits' with "
            "reduce=LogitsOf(tokens)"
        )
    positions = position_table(read.at, length)
    if read.head is None:
        return [LayerRead(read.site, _layer(anatomy, read), positions, None, read.reduce)]
    parts = heads_by_layer(anatomy, read.head, read.site, read.scope)
    if read.scope != "head":
        return [LayerRead(read.site, layer, positions, heads, read.reduce) for layer, _, heads in parts]
    return [  # two query heads may have one KV head, which one read would name twice
        LayerRead(read.site, layer, positions, heads[:, [column]] // anatomy.parts[layer].group, read.reduce)
        for layer, columns, heads in parts
        for column in range(len(columns))
    ]


def join_read(read: Read, values: Sequence[Tensor]) -> Tensor:
    """The values of the parts of a read: heads in the order in which they were given, narrow ones padded with zeros,
    without the axis of a single head or position."""
    value = values[0]
    if len(values) > 1:
        widest = max(value.shape[-1] for value in values)
        value = torch.cat([pad(part, (0, widest - part.shape[-1])).to(value.device) for part in values], dim=1)
        layers = head_table(cast("Heads", read.head))[0, :, 0].tolist()
        order = [column for layer in dict.fromkeys(layers) for column, own in enumerate(layers) if own == layer]
        if order != sorted(order):
            value = value.index_select(1, torch.argsort(torch.tensor(order)).to(value.device))
    if not has_axes(read):
        return value
    value = value.squeeze(-2) if is_one_position(read.at) else value
    return value.squeeze(1) if read.head is not None and is_one_head(read.head) else value


def has_axes(read: Read) -> bool:
    """Whether the values of a read have the axes of `Read`; a reduction may return others."""
    return read.reduce is None or isinstance(read.reduce, LogitsOf)


def position_table(at: At, length: int) -> Tensor:
    """Positions as a table of indices, one line for all rows or one a row."""
    if has_names(at):
        raise SurgeryError(
            f"at={at!r} has the name of a position, and only prompts know names: run it with a rebinding.Recording, or "
            "give an index"
        )
    table = integers(cast("Index", at), "positions")
    return index_table(table if isinstance(at, Tensor) else torch.where(table < 0, table + length, table), "positions")


def heads_by_layer(
    anatomy: Anatomy, head: Heads, site: str, scope: Scope | None
) -> list[tuple[int, list[int], Tensor]]:
    """For each layer of the heads its number, the places of its heads in the list, and their numbers (1 or row, head).

    A head that does not exist is refused."""
    table, grouped = head_table(head), scope == "group"
    layers, by_layer = table[0, :, 0].tolist(), dict[int, list[int]]()
    if bool((table[..., 0] != table[:1, :, 0]).any()):
        raise SurgeryError("a column of the table head has heads of several layers; give each layer an edit or a read")
    for column, layer in enumerate(layers):
        by_layer.setdefault(layer, []).append(column)
    counts = [part.n_kv_heads if grouped else part.n_heads for part in anatomy.parts]
    for layer, columns in by_layer.items():
        heads = table[:, columns, 1]  # (1 or row, head)
        if 0 <= layer < anatomy.n_layers and not counts[layer]:
            raise SurgeryError(
                f"layer {layer} has no attention heads and so no {site}: its {anatomy.parts[layer].mixer} carries a "
                "state from token to token. Layers with heads are listed by anatomy.heads"
            )
        if not (0 <= layer < anatomy.n_layers and int(heads.min()) >= 0 and int(heads.max()) < counts[layer]):
            number = int(heads.min()) if int(heads.min()) < 0 else int(heads.max())
            kind = "KV heads" if grouped else "query heads"
            raise SurgeryError(
                f"there is no head ({layer}, {number}): the model has layers 0 to {anatomy.n_layers - 1} and {kind} 0 "
                f"to {max(counts) - 1} in each{_exceptions(counts)}; a head is (layer, head), and {site} counts {kind}"
            )
    return [(layer, columns, index_table(table[:, columns, 1], "heads")) for layer, columns in by_layer.items()]


def _exceptions(counts: Sequence[int]) -> str:
    """The layers without heads, in words."""
    without = [str(layer) for layer, count in enumerate(counts) if count == 0]
    return f" but none in layers {', '.join(without)}" if without else ""


def _layer(anatomy: Anatomy, item: Edit | Read) -> int:
    """The layer of a site without heads. `resid` has one more, the input of the final norm; the logits are above it."""
    if item.site in AFTER_LAYERS:
        return anatomy.n_layers
    last, layer = anatomy.n_layers - (item.site != "resid"), layer_number(cast(int, item.layer))
    if not 0 <= layer <= last:
        raise SurgeryError(f"there is no layer {layer}: {item.site!r} has layers 0 to {last} in this model")
    if item.site == "resid_mid" and (reason := anatomy.lacks_middle):
        raise SurgeryError(f"layer {layer} has no resid_mid: {reason}")
    return layer


def to_tensor(value: Any) -> Tensor:
    """The value of an edit as a tensor."""
    if isinstance(value, Tensor):
        return value
    try:
        return torch.as_tensor(value, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError):
        raise SurgeryError(
            "value must be a number or a tensor, or, in runs of a rebinding.Recording, a Recording or a function; got a"
            f" {type(value).__name__}"
        ) from None


def with_all_axes(value: Tensor, edit: Edit, last: tuple[str, ...]) -> Tensor:
    """A value in the shape that a read returns, with the axes of a single head and a single position put in. `last` are
    the axes after these."""
    one_head, one_position = edit.head is not None and is_one_head(edit.head), is_one_position(edit.at)
    names = ["row", *(["head"] if edit.site not in HEADLESS and not one_head else [])]
    names += [*(() if one_position else ("position",)), *last]
    if value.ndim > len(names):
        raise SurgeryError(
            f"the value or mask has shape {tuple(value.shape)}; this edit takes ({', '.join(names)}), as a Read with "
            "the same head and at returns it, or what broadcasts to it"
        )
    if value.ndim == 0:
        return value
    value = value.reshape((1,) * (len(names) - value.ndim) + tuple(value.shape))
    value = value.unsqueeze(value.ndim - len(last)) if one_position else value
    return value.unsqueeze(1) if one_head else value


def _columns(value: Tensor, columns: list[int], count: int) -> Tensor:
    """The part of a value (row, head, ...) of `count` heads for some of them; one that all heads have serves each."""
    return value if value.shape[1] != count or columns == list(range(count)) else value[:, columns]


def _narrowed(value: Tensor, width: int) -> Tensor:
    """A value without the zeros with which `join_read` pads narrow heads."""
    if value.ndim == 0 or value.shape[-1] <= width or bool(value[..., width:].any()):
        return value
    return value[..., :width]
