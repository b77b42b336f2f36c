"""Raw queries, keys and values of single heads, taken through norm and RoPE as in the model.

An edit of a raw key for ONE query head changes that head's copy: a copy of the projection, then norm and RoPE.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from rebinding.surgery.anatomy import Anatomy
from rebinding.surgery.batch import Batch, Results, places, write
from rebinding.surgery.calling import watch_module
from rebinding.surgery.checks import SurgeryError
from rebinding.surgery.parts import LayerParts
from rebinding.surgery.sites import Site

WORDS = {"q": "query", "k": "key", "v": "value"}
WRITABLE: dict[Site, Site] = {"k": "k_rot", "v": "v_seen"}
"""Raw keys and values, and the copies that query heads see of them."""


def seen_by_attention(attention: nn.Module, parts: LayerParts, site: str, raw: Tensor, call: dict[str, Any]) -> Tensor:
    """Raw queries, keys or values of all heads of a layer (row, head, token, head_dim) after their norm and RoPE."""
    norm_name = {"q": parts.q_norm, "k": parts.k_norm, "v": parts.v_norm}[site]
    norm: Any = getattr(attention, norm_name) if norm_name else None
    if site == "v":
        return raw if norm is None else normed(norm, raw)
    if parts.rotation == "complex":  # the norm comes after
        raw = _rotated(attention, parts, site, raw, call)
        return raw if norm is None else normed(norm, raw)
    raw = _rotated(attention, parts, site, raw if norm is None else normed(norm, raw), call)
    return raw * parts.query_factor if site == "q" and parts.query_factor != 1.0 else raw


def normed(norm: Any, heads: Tensor) -> Tensor:
    """Heads (row, head, token, head_dim) after their norm: of each head alone, or of all of them together.

    `forward` is called, not the module: its hooks see the model's own run only.
    """
    weight = getattr(norm, "weight", None)
    if weight is not None and weight.ndim == 2:  # one line a head: (head, head_dim)
        by_token: Tensor = norm.forward(heads.transpose(1, 2))  # (row, token, head, head_dim)
        return by_token.transpose(1, 2)
    if weight is None or weight.shape[-1] == heads.shape[-1]:
        out: Tensor = norm.forward(heads)
        return out
    together = norm.forward(heads.transpose(1, 2).flatten(2))  # (row, token, head x head_dim)
    return together.unflatten(-1, (heads.shape[1], -1)).transpose(1, 2)  # type: ignore[no-any-return]


def _rotated(attention: nn.Module, parts: LayerParts, site: str, raw: Tensor, call: dict[str, Any]) -> Tensor:
    angles = call.get("position_embeddings")
    if parts.rotation == "none" or angles is None:
        return raw
    name = "apply_rotary_emb" if parts.rotation == "complex" else "apply_rotary_pos_emb"
    function = getattr(sys.modules[type(attention).__module__], name, None)
    if function is None:
        raise SurgeryError(
            f"{type(attention).__name__} rotates in a way that is not known here: a raw {WORDS[site]} cannot be edited "
            f"for one query head alone. Edit {site}_rot instead."
        )
    if parts.rotation == "complex":  # (row, token, head, head_dim)
        by_token = raw.transpose(1, 2)
        return function(by_token, by_token, angles)[0].transpose(1, 2)  # type: ignore[no-any-return]
    cos, sin = angles
    width = cos.shape[-1] * (2 if parts.rotation == "half" else 1)
    turned, rest = raw[..., :width], raw[..., width:]
    if parts.rotation == "single":
        out = function(turned, cos, sin)
    else:
        out = function(turned, turned, cos, sin)[0 if site == "q" else 1]
    return torch.cat([out, rest], dim=-1) if rest.shape[-1] else out


def spans_heads(attention: nn.Module, parts: LayerParts, site: str) -> bool:
    """Whether the norm of a site mixes heads, so that no head has a raw vector of its own."""
    name = {"q": parts.q_norm, "k": parts.k_norm, "v": parts.v_norm}[site]
    weight = getattr(getattr(attention, name), "weight", None) if name else None
    return weight is not None and weight.shape[-1] != parts.head_dim


@dataclass(frozen=True, eq=False)
class RawHeads:
    """Raw keys and values in a replay, of layers whose heads' own copies are edited: there, or in a layer above that
    reuses them. `values[layer, site]` is (row, kv head, token, head_dim)."""

    anatomy: Anatomy
    batch: Batch
    values: dict[tuple[int, Site], Tensor] = field(default_factory=dict)

    @cached_property
    def needed(self) -> frozenset[tuple[int, Site]]:
        """The layers whose raw keys or values some edit of a head's copy needs."""
        edits = (placed.edit for placed in self.batch.placed if placed.edit.scope == "head")
        return frozenset((self.anatomy.parts[edit.layer].key_layer, edit.site) for edit in edits)

    def watch(self, hooks: ExitStack, layer: nn.Module, parts: LayerParts) -> None:
        """Keep what the layer's projections put out, where it is needed."""
        for site in WRITABLE:
            if (parts.number, site) in self.needed:
                path, end = parts.module_of(site)
                watch_module(hooks, layer, path, end, partial(self._keep, parts, site))

    def _keep(self, parts: LayerParts, site: Site, value: Any) -> None:
        self.values[parts.number, site] = parts.projection(site).heads(value, parts.head_dim)

    def of_rows(self, layer: int, site: Site, source: Tensor) -> Tensor:
        """Those of rows that continue prompts `source`; of rows that started above the layer, as recorded."""
        known = self.values.get((layer, site))
        count = 0 if known is None else known.shape[0]
        if known is not None and count == len(source):
            return known
        recorded = self.batch.recording.sites[f"shared_{site}"][layer]
        rest = recorded[source[count:].to(recorded.device), :, self.batch.begin : self.batch.end]
        return rest if known is None else torch.cat([known.to(rest), rest])


def rewritten(
    layers: nn.ModuleList,
    raw: RawHeads,
    parts: LayerParts,
    site: Site,
    call: dict[str, Any],
    results: Results,
) -> Callable[[Tensor], Tensor] | None:
    """A function that puts edited raw keys or values into those that single query heads see; None without such edits.

    It first takes the unedited raw keys along the same path and compares the result with the model's own keys: an
    architecture that does more between projection and attention is refused rather than edited inexactly. The outcome is
    checked at the end of the run, so no layer waits for it.
    """
    batch, key_parts = raw.batch, raw.anatomy.parts[parts.key_layer]
    edits = batch.edits_at(parts.number, site, scope="head")
    if not edits:
        return None
    attention, what, copy = layers[parts.key_layer].get_submodule(key_parts.attention), WORDS[site], WRITABLE[site]
    if spans_heads(attention, key_parts, site):
        raise SurgeryError(
            f"{type(attention).__name__} normalises all heads together: a raw {what} cannot be edited for one "
            f"query head alone. Edit {copy} instead, or use scope='group'."
        )

    def transform(per_head: Tensor) -> Tensor:
        """Copies of query heads (row, head, token, head_dim) through norm and RoPE, each as its KV head's."""
        members = per_head.unflatten(1, (-1, parts.group)).transpose(1, 2)  # (row, member, kv head, token, head_dim)
        rows = [seen_by_attention(attention, key_parts, site, member, call) for member in members.unbind(1)]
        return torch.stack(rows, dim=2).flatten(1, 2)

    def rewrite(seen: Tensor) -> Tensor:
        own = raw.of_rows(parts.key_layer, site, batch.source[: seen.shape[0]])
        per_head = own.repeat_interleave(parts.group, dim=1)  # (row, head, token, head_dim)
        rounding = 8 * torch.finfo(seen.dtype).eps * seen.abs().max()
        results.require(
            (transform(per_head) - seen).abs().max() <= rounding,
            f"{type(attention).__name__} does more to a {what} than norm and RoPE: edit {copy} instead of the raw "
            f"{what}",
        )
        touched = torch.zeros_like(per_head, dtype=torch.bool)
        before = (
            per_head.clone() if bool(batch.plan.must_change.any()) else per_head
        )  # compared only where no-ops are errors
        for placed in edits:
            write(per_head, placed, batch.first)
            touched[places(placed, batch.first, touched.device)] = True
        batch.note_changes(edits, before, per_head, results)
        return torch.where(touched, transform(per_head), seen)

    return rewrite
