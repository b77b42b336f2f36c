"""Batches of edits at every layer of a model: four rows a layer, and one row that all layers edit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rebinding.surgery.sites import HEADLESS, KEYED, Edit, Read, Site
from tests.families.models import LENGTH, N_HEADS, PROMPTS, VOCABULARY, Family
from tests.families.tables import TABLES, Table
from tests.surgery.cases import Cell
from tests.surgery.tables import place

FIRST = 6
"""The first token that a windowed batch edits and reads; the tokens before it are those of the unedited run."""

SIZE = 3.0
"""Of the values written, in units of what passes through matrices of gain 1."""
LONELY: frozenset[Site] = frozenset({"q", "q_rot", "scores"})
"""Sites whose value at the first token changes nothing: it has one key to attend to."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Edits and reads of one call, and the layer that each row edits; the last row has edits at all layers."""

    edits: list[Edit]
    reads: list[Read]
    source: Tensor
    layers: list[int]


def make_batch(family: Family, cell: Cell, *, is_windowed: bool, has_reused: bool = True) -> Batch:
    """Edits at all layers with the site, at other heads and tokens in every row: two rows set it, two add to it.

    Without `has_reused` there are no edits of keys and values that a layer takes from another one. The reads are the
    last residual and the logits at every token; where the batch is not windowed, the site itself too, and a pattern if
    attention is frozen.
    """
    table, dice = TABLES[family], torch.Generator().manual_seed(sum(map(ord, family + str(cell))) + is_windowed)
    first = FIRST if is_windowed else int(cell.site in LONELY)
    layers = [
        layer for layer in table.layers_with(cell.site) if has_reused or table.source_of(cell.site, layer) == layer
    ]
    last_row = 4 * len(layers)
    edits: list[Edit] = []
    for number, layer in enumerate(layers):
        rows = [4 * number + i for i in range(4)]
        for mode, pair in (("set", rows[:2]), ("add", rows[2:])):
            edits.append(_edit(table, cell, layer, first, dice, rows=pair, mode=mode, n_positions=3))
        edits.append(_edit(table, cell, layer, first, dice, rows=[last_row], mode="add", n_positions=1))
    reads = [Read("resid", at=range(first, LENGTH), layer=len(table.layers))]
    reads.append(Read("logits", at=range(first, LENGTH)))
    if not is_windowed:
        reads += [read_all(table, cell.site, layer) for layer in layers]
        if cell.attention == "frozen":  # attention has to run although its output is held
            reads.append(read_all(table, "pattern", table.layers_with("pattern")[-1]))
    source = torch.randint(PROMPTS, (last_row + 1,), generator=dice)
    return Batch(edits, reads, source, [layer for layer in layers for _ in range(4)])


def read_all(table: Table, site: Site, layer: int) -> Read:
    """A read of a site at all heads and tokens."""
    heads = None if site in HEADLESS else range(count_heads(table, site, "group", layer))
    return Read(site, at=range(LENGTH), **place(site, layer, heads))


def count_heads(table: Table, site: Site, scope: str | None, layer: int) -> int:
    """Heads of a site: of raw keys and values, KV heads."""
    return table.layers[layer].kv_heads if site in ("k", "v") and scope == "group" else N_HEADS


def width_of(table: Table, site: Site, layer: int) -> int:
    """The last axis of a site."""
    if site == "logits":
        return VOCABULARY
    if site in KEYED:
        return LENGTH
    widths = {"resid": table.hidden, "mlp_out": table.hidden // table.streams}
    return widths.get(site) or table.layers[layer].head_dim


def _edit(
    table: Table,
    cell: Cell,
    layer: int,
    first: int,
    dice: torch.Generator,
    *,
    rows: list[int],
    mode: str,
    n_positions: int,
) -> Edit:
    def draw(count: int, start: int, stop: int) -> Tensor:
        order = torch.stack([torch.randperm(stop - start, generator=dice) for _ in rows])
        return start + order[:, :count]  # (row, count)

    positions, width = draw(n_positions, first, LENGTH), width_of(table, cell.site, layer)
    shape: tuple[int, ...] = (len(rows), n_positions, width)
    heads = None
    if cell.site not in HEADLESS:
        heads = draw(3, 0, count_heads(table, cell.site, cell.scope, layer))
        shape = (len(rows), heads.shape[1], n_positions, width)
    value = SIZE * torch.randn(shape, generator=dice)
    where = torch.rand(shape[:-1], generator=dice) < 0.7
    where[..., -1] = True
    return Edit(
        cell.site,
        value,
        at=positions,
        rows=rows,
        mode=mode,  # type: ignore[arg-type]
        where=where,
        **place(cell.site, layer, heads, scope=cell.scope),
    )
