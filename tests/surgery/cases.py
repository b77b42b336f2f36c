"""Batches of edits and reads at every site that a surgeon with an error anywhere cannot pass."""

from __future__ import annotations

import torch
from torch import Tensor

from rebinding.models.reference import CELLS, Cell
from rebinding.surgery.sites import HEADLESS, Edit, Mode, Read, Site
from tests.surgery.models import VOCABULARY
from tests.surgery.tables import place

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
