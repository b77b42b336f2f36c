"""Surgeons on tiny models, and edits that must have an effect there."""

from __future__ import annotations

from typing import Any

import torch

from rebinding.surgery import Edit, Read, TorchSurgeon, derive
from rebinding.surgery.sites import Mode, Site
from tests.surgery.models import Family, tiny
from tests.surgery.tables import place

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
