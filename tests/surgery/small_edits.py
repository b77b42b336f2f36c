"""Edits and reads for tests: with an effect, at every site, and carried out cell by cell."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from rebinding.models.reference import CELLS, Cell
from rebinding.surgery import Edit, Read, TorchSurgeon, derive, in_layer
from rebinding.surgery.sites import HEADLESS, Heads, Index, Mode, Site
from tests.surgery.models import VOCABULARY, Family, tiny

RECORDED_SITES: tuple[Site, ...] = (
    "resid",
    "q",
    "k",
    "v",
    "q_rot",
    "k_rot",
    "v_seen",
    "scores",
    "pattern",
    "z",
    "mlp_out",
)


def make_surgeon(family: Family, **options: Any) -> TorchSurgeon:
    """A surgeon on a tiny model."""
    model = tiny(family)
    return TorchSurgeon(model, derive(model), **options)


def edit_at(surgeon: TorchSurgeon, site: Any, layer: int, position: int, length: int, **options: Any) -> Edit:
    """An edit with an effect, at one head (or none) and one position."""
    anatomy = surgeon.anatomy
    dice = torch.Generator().manual_seed(layer * 100 + position)
    if site == "pattern":
        value = torch.zeros(length)
        value[0] = 1.0
    elif site == "scores":
        value = torch.zeros(length)
        value[position - 1] = 9.0  # inside every window
    else:
        wide = anatomy.hidden if site in ("resid", "mlp_out") else anatomy.parts[0].head_dim
        value = torch.randn(wide, generator=dice) * 3
    heads = None if site in ("resid", "mlp_out") else [1]
    mode: Mode = "set" if site == "pattern" else "add"
    return Edit(site, value, at=[position], mode=mode, **place(site, layer, heads) | options)


def logits(surgeon: TorchSurgeon, recording: Any, edits: list[Edit], positions: Any, **options: Any) -> torch.Tensor:
    """Logits at some positions."""
    return surgeon.run(recording, edits, [Read("logits", at=positions)], **options)[0]


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


LENGTH = 13
SOURCE = torch.tensor([0, 2, 1, 2])
__all__ = ["CELLS", "LENGTH", "SOURCE", "Cell"]


def width(site: Site) -> int:
    """The last dimension of a site in the tiny models."""
    widths: dict[Site, int] = {"scores": LENGTH, "pattern": LENGTH, "resid": 24, "mlp_out": 24, "logits": VOCABULARY}
    return widths.get(site, 10)


def make_edits(cell: Cell, mode: Mode) -> list[Edit]:
    """Three edits of a site, two of them in one place; other heads and positions in every row, no row in all three."""
    dice = torch.Generator().manual_seed(len(str(cell)))
    is_grouped = cell.scope == "group"
    heads = [[1, 0], [0, 1], [1, 0]] if is_grouped else [[4, 1], [0, 5], [2, 3]]
    heads1, heads2, heads3 = (None, None, None) if cell.site in HEADLESS else (heads, [1], [0, 1])
    inner = (width(cell.site),) if heads1 is None else (1, width(cell.site))

    def values(rows: int, positions: int, count: int) -> Tensor:
        shape = (rows, positions, width(cell.site)) if heads1 is None else (rows, count, positions, width(cell.site))
        return torch.randn(shape, generator=dice)

    first = values(3, 2, 2)
    mask = torch.rand(first.shape[:-1], generator=dice) < 0.6
    mask[..., 0] = True
    return [
        Edit(
            cell.site,
            first,
            at=[[4, 9], [7, 6], [12, 8]],
            **place(cell.site, 1, heads1, scope=cell.scope),
            rows=[3, 0, 2],
            mode=mode,
            where=mask,
        ),
        Edit(
            cell.site,
            torch.ones(inner),
            at=[6, 9],
            rows=[0],
            mode="add",
            **place(cell.site, 1, heads2, scope=cell.scope),
        ),
        Edit(
            cell.site, values(1, 1, 2), at=[5], rows=[1, 2], mode=mode, **place(cell.site, 2, heads3, scope=cell.scope)
        ),
    ]


def make_reads(cell: Cell) -> list[Read]:
    """Reads of the edited site in its layer and above, and of later residuals, patterns and logits."""
    heads = None if cell.site in HEADLESS else [[0, 1], [1, 0], [0, 1], [1, 0]]
    several = heads if heads is None or cell.site in ("k", "v") else [[4, 1, 0], [1, 5, 0], [2, 0, 3], [4, 1, 2]]
    neighbours: list[Read] = [
        Read(cell.site, at=[[7, 6, 5], [12, 5, 0], [8, 12, 5], [4, 9, 11]], **place(cell.site, layer, several))
        for layer in (1, 2, 3)
    ]
    later_reads = [Read("resid", at=[3, 12], layer=4), Read("logits", at=[[12, 9], [11, 5], [10, 12], [12, 4]])]
    if cell.attention == "frozen":
        return [*neighbours, Read("q", at=[5, 12], head=[(3, 0), (3, 5)]), *later_reads]
    return [*neighbours, Read("pattern", at=[5, 12], head=[(3, 0), (3, 5)]), *later_reads]


def error(actual: list[Tensor], expected: list[Tensor]) -> float:
    """The largest difference of two results, relative where values exceed 1: masked scores are about -3e38."""
    gaps = [((a - b).abs() / b.abs().clamp(min=1)).max() for a, b in zip(actual, expected, strict=True)]
    return float(torch.stack(gaps).max())
