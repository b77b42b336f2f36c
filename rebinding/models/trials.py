"""The edits of a certificate: noise of a site's size, at half of the heads and one token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rebinding.surgery.anatomy import Anatomy, LayerParts
from rebinding.surgery.sites import HEADLESS, KEYED, SITES, Attention, Edit, Scope, Site

INSIDE: frozenset[str] = frozenset({"q_rot", "k_rot", "v_seen", "scores", "pattern"})
"""Sites inside the attention function."""
LAYERS_AT_ONCE = 2
"""Layers that share a batch and the edited token; the others get another token."""


@dataclass(frozen=True)
class Cell:
    """A site, the scope of its edit, and whether attention is frozen."""

    site: Site
    scope: Scope | None = None
    attention: Attention = "live"

    def __str__(self) -> str:
        return " ".join(filter(None, [self.site, self.scope, "frozen" if self.attention == "frozen" else None]))


SCOPED: dict[Site, tuple[Scope | None, ...]] = {"k": ("group", "head"), "v": ("group", "head")}
CELLS: tuple[Cell, ...] = (
    *(Cell(site, scope) for site in SITES for scope in SCOPED.get(site, (None,))),
    *(Cell(site, attention="frozen") for site in ("resid", "z", "mlp_out", "logits")),
)
"""Every kind of edit that a surgeon offers."""


@dataclass(frozen=True, eq=False)
class Trial:
    """Noise that is added to one site of one layer, at one token of one row."""

    site: Site
    layer: int
    position: int
    value: Tensor
    """(head, 1, width), or (1, width) at sites without heads."""
    heads: tuple[int, ...] | None = None
    scope: Scope | None = None
    attention: Attention = "live"
    group: Trial | None = None
    copies: tuple[int, ...] = ()
    """An edit of single heads' copies: the edit of the whole KV groups where the keys come from, and the query heads
    that see its keys or values."""

    @property
    def is_inside(self) -> bool:
        """Whether the edit acts inside the attention function."""
        return self.site in INSIDE or self.group is not None

    @property
    def cell(self) -> Cell:
        """The kind of edit."""
        return Cell(self.site, self.scope, self.attention)

    def edit(self, row: int) -> Edit:
        """The edit of a surgeon, in one row of its batch."""
        value = self.value if self.heads is None else self.value[None]
        return Edit(
            self.site,
            self.layer,
            value if self.heads is not None else value[None],
            positions=[self.position],
            heads=None if self.heads is None else list(self.heads),
            rows=[row],
            mode="add",
            scope=self.scope,
        )


def missing_part(anatomy: Anatomy, cell: Cell, layer: int) -> str | None:
    """Why a layer has no such site; None if it has it."""
    if layer == anatomy.n_layers or cell.site in HEADLESS:
        return None
    return None if anatomy.parts[layer].n_heads else "the layer has no attention heads"


def cells_at(anatomy: Anatomy, layer: int, attention: Attention) -> list[Cell]:
    """The cells that exist at a layer; `n_layers` is the input of the final norm, and the logits above it."""
    top = ("resid", "logits")
    is_top = layer == anatomy.n_layers
    return [
        cell
        for cell in CELLS
        if cell.attention == attention
        and (cell.site in top if is_top else cell.site != "logits")
        and missing_part(anatomy, cell, layer) is None
    ]


def batches(layers: Sequence[int]) -> Iterator[list[int]]:
    """Layers that are edited in one batch: low and high ones together, so that rows start at different layers."""
    count = -(-len(layers) // LAYERS_AT_ONCE)
    yield from ([*layers[start::count]] for start in range(count))


def make_trials(
    anatomy: Anatomy,
    cells: Sequence[Cell],
    layer: int,
    position: int,
    length: int,
    size: Callable[[Site, int], Tensor | float],
) -> list[Trial]:
    """One trial for each cell."""
    parts, trials = anatomy.parts[min(layer, anatomy.n_layers - 1)], []
    for cell in cells:
        dice = torch.Generator().manual_seed(1000 * layer + 10 * SITES.index(cell.site) + (cell.attention == "frozen"))
        noise = torch.randn(max(parts.n_heads, 1), 1, _width(anatomy, parts, cell.site, length), generator=dice)
        noise = noise * size(cell.site, layer)  # (head, 1, width)
        if cell.site in HEADLESS:
            trials.append(Trial(cell.site, layer, position, noise[0], attention=cell.attention))
            continue
        heads = _draw_half(range(parts.n_heads if cell.scope is None else parts.n_kv_heads), dice)
        trial = Trial(cell.site, layer, position, noise[list(heads)], heads, cell.scope, cell.attention)
        is_copy = cell.scope == "head" or (cell.scope == "group" and not parts.has_own_keys)
        trials.append(_edit_copies(trial, parts, noise, dice) if is_copy else trial)
    return trials


def _edit_copies(trial: Trial, parts: LayerParts, noise: Tensor, dice: torch.Generator) -> Trial:
    """An edit of what query heads see of some KV heads: half of these query heads, or all with `scope="group"`."""
    group = replace(trial, layer=parts.key_layer, scope="group")
    members = [head for head in range(parts.n_heads) if parts.kv_head(head) in (trial.heads or ())]
    if trial.scope == "group":
        return replace(trial, group=group, copies=tuple(members))
    heads = _draw_half(members, dice)
    value = noise[[parts.kv_head(head) for head in heads]]  # the noise of each head's KV head
    return replace(trial, heads=heads, value=value, group=group, copies=heads)


def _draw_half(items: Sequence[int], dice: torch.Generator) -> tuple[int, ...]:
    """Half of some heads, rounded up, in random order."""
    order = torch.randperm(len(items), generator=dice).tolist()
    return tuple(items[place] for place in order[: -(-len(items) // 2)])


def _width(anatomy: Anatomy, parts: LayerParts, site: Site, length: int) -> int:
    if site == "logits":
        return 1  # the same noise for all tokens of the vocabulary, of which 16-bit models compute a part here
    if site in HEADLESS:
        return anatomy.width(site)
    return length if site in KEYED else parts.head_dim
