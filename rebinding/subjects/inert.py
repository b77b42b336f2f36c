"""Edits that do nothing: noise at every place of a site has to move what the last layer puts out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rebinding.subjects.allowance import Allowance, size
from rebinding.subjects.probe import Watched
from rebinding.surgery import Anatomy, Edit, Read, Site, Surgeon
from rebinding.surgery.recording import Recording
from rebinding.surgery.sites import HEADLESS, KEYED, SITES

TOKENS = 4
"""Tokens at the end of a prompt at which edits are made."""


def inert_sites(
    surgeon: Surgeon,
    recording: Recording,
    layers: Sequence[int],
    sizes: Callable[[Site, int], float],
    allowance: Allowance,
) -> list[Site]:
    """Sites at which noise of some size at every head of these layers and the last tokens leaves the last residual.

    One batch: a row a site, and one row left alone.
    """
    anatomy, sites = surgeon.anatomy, [site for site in SITES if site != "logits"]
    edits = [
        _noise(anatomy, site, layer, row, recording.length, sizes(site, layer))
        for row, site in enumerate(sites, start=1)
        for layer in layers
    ]
    read = Read("resid", anatomy.n_layers, positions=_last(recording.length))
    source = torch.zeros(len(sites) + 1, dtype=torch.long)
    (resid,) = surgeon.run(recording, edits, [read], source=source)  # (row, token, hidden)
    moves = [_moved(row, resid[0]) for row in resid[1:]]
    return [site for site, move in zip(sites, moves, strict=True) if not move > allowance.relative]


def _moved(row: Tensor, still: Tensor) -> float:
    """How far the dimensions of a residual moved on average, each by its own measure and by 1 at the most.

    Planted models and trained ones have dimensions a thousand times larger than others, beside which nothing moves.
    """
    by, of = ((value.float().square().mean(dim=0).sqrt()) for value in (row - still, still))  # (hidden)
    return float((by / of.clamp(min=torch.finfo(of.dtype).tiny)).clamp(max=1).mean())


def _noise(anatomy: Anatomy, site: Site, layer: int, row: int, length: int, size: float) -> Edit:
    grouped = site in ("k", "v")
    heads = None if site in HEADLESS else list(range(anatomy.n_kv_heads if grouped else anatomy.n_heads))
    width = length if site in KEYED else anatomy.hidden if heads is None else anatomy.head_dim
    tokens = _last(length)
    shape = (1, len(tokens), width) if heads is None else (1, len(heads), len(tokens), width)
    dice = torch.Generator().manual_seed(row * anatomy.n_layers + layer)
    return Edit(
        site,
        layer,
        size * torch.randn(shape, generator=dice),
        positions=tokens,
        heads=heads,
        rows=[row],
        mode="add",
        scope="group" if grouped else None,
    )


def _last(length: int) -> list[int]:
    return list(range(max(0, length - TOKENS), length))


def size_at(ours: Watched, site: Site, layer: int) -> float:
    """One more than the root mean square of what stands at a site; scores and patterns have sizes of their own."""
    if site in KEYED:
        return 1.0
    what = "resid" if site in HEADLESS else {"q_rot": "q", "k_rot": "k", "v_seen": "v"}.get(site, site)
    return 1.0 + size(ours.modules[layer, what])
