"""Edits of raw keys for ONE query head: a copy of the projection, then norm and RoPE as in the model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rebinding.surgery.anatomy import Anatomy
from rebinding.surgery.batch import Batch, Placed, Results, places, write
from rebinding.surgery.checks import SurgeryError
from rebinding.surgery.recording import site_of_output


def rotate(attention: nn.Module, raw: Tensor, call: dict[str, Any], which: Literal["q", "k"]) -> Tensor:
    """Raw queries or keys (row, head, token, head_dim) after the module's own norm of them and rotary embedding."""
    what = {"q": "query", "k": "key"}[which]
    norm = getattr(attention, f"{which}_norm", None)
    if norm is not None:
        if norm.weight.shape[-1] != raw.shape[-1]:
            raise SurgeryError(
                f"{type(attention).__name__} normalises all heads together: a raw {what} cannot be edited for one "
                f"query head alone. Edit {which}_rot instead, or use scope='group'."
            )
        raw = norm(raw)
    rotary = getattr(sys.modules[type(attention).__module__], "apply_rotary_pos_emb", None)
    if rotary is None or "position_embeddings" not in call:
        raise SurgeryError(
            f"{type(attention).__name__} rotates in a way that is not known here: a raw {what} cannot be edited for "
            f"one query head alone. Edit {which}_rot instead."
        )
    rotated: Tensor = rotary(raw, raw, *call["position_embeddings"])[0 if which == "q" else 1]
    return rotated


def rewritten_keys(
    hooks: ExitStack,
    layer: nn.Module,
    anatomy: Anatomy,
    edits: list[Placed],
    batch: Batch,
    call: dict[str, Any],
    results: Results,
) -> Callable[[Tensor], Tensor]:
    """A function that puts edited raw keys into the keys that single query heads see.

    It first takes the unedited raw keys along the same path and compares the result with the model's own keys: an
    architecture that does more between projection and attention is refused rather than edited inexactly. The outcome is
    checked at the end of the run, so no layer waits for it.
    """
    attention = layer.get_submodule(anatomy.attention)
    raw: list[Tensor] = []

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        raw.append(site_of_output(anatomy, "k", output))

    hooks.callback(layer.get_submodule(anatomy.k.module).register_forward_hook(keep).remove)

    def rewrite(seen: Tensor) -> Tensor:
        per_head = raw.pop().repeat_interleave(anatomy.group, dim=1)  # (row, head, token, head_dim)
        rounding = 8 * torch.finfo(seen.dtype).eps * seen.abs().max()
        results.require(
            (rotate(attention, per_head, call, "k") - seen).abs().max() <= rounding,
            f"{type(attention).__name__} does more to a key than norm and RoPE: edit k_rot instead of the raw key",
        )
        touched = torch.zeros_like(per_head, dtype=torch.bool)
        before = (
            per_head.clone() if bool(batch.plan.must_change.any()) else per_head
        )  # compared only where no-ops are errors
        for placed in edits:
            write(per_head, placed, batch.first)
            touched[places(placed, batch.first, touched.device)] = True
        batch.note_changes(edits, before, per_head, results)
        return torch.where(touched, rotate(attention, per_head, call, "k"), seen)

    return rewrite
