"""Edits and reads for tests: with an effect, at every site."""

from __future__ import annotations

from typing import Any

import torch

from rebinding.surgery import Edit, Read, TorchSurgeon, derive, in_layer
from rebinding.surgery.sites import HEADLESS, KEYED, SITES, Index, Mode, Site
from tests.families.models import SIZES, VOCABULARY, Family, tiny

RECORDED_SITES: tuple[Site, ...] = tuple(site for site in SITES if site != "logits")
LENGTH = 13
"""Tokens of `tokens`."""


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
        wide = anatomy.width(site) if site in HEADLESS else anatomy.parts[0].head_dim
        value = torch.randn(wide, generator=dice) * 3
    heads = None if site in HEADLESS else [1]
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


def width(site: Site) -> int:
    """The last axis of a site in the models of `tiny`."""
    if site in KEYED:
        return LENGTH
    hidden, head_dim = int(SIZES["hidden_size"]), int(SIZES["head_dim"])
    return {"resid": hidden, "resid_mid": hidden, "mlp_out": hidden, "logits": VOCABULARY}.get(site, head_dim)
