"""Attention written out: what the library's eager functions compute, with a look at every site on the way."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

At: TypeAlias = Callable[[str, int, Tensor], Tensor]
"""Edits and notes a site's value (site, layer, value) and returns it."""


def attend(
    at: At,
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    *,
    scaling: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """z (row, token, head, head_dim) and the pattern. A sink takes part in the softmax and is dropped after it."""
    layer, group = module.layer_idx, query.shape[1] // key.shape[1]
    query = at("q_rot", layer, query)  # (row, head, token, head_dim)
    key = at("k_rot", layer, key.repeat_interleave(group, dim=1))  # (row, head, token, head_dim)
    value = at("v_seen", layer, value.repeat_interleave(group, dim=1))  # (row, head, token, head_dim)
    scores = query @ key.transpose(2, 3) * scaling  # (row, head, query, key)
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    scores = at("scores", layer, scores + mask)
    if hasattr(module, "sinks"):
        sinks = module.sinks[None, :, None, None].expand(*scores.shape[:3], 1)  # (row, head, query, 1)
        pattern = torch.softmax(torch.cat([scores, sinks], dim=-1), dim=-1)[..., :-1]
    else:
        pattern = torch.softmax(scores, dim=-1)
    pattern = at("pattern", layer, pattern)
    return (pattern @ value).transpose(1, 2), pattern


@contextmanager
def replaced_attention(model: PreTrainedModel, at: At) -> Iterator[None]:
    """A model on `attend` in place of its family's eager attention."""
    file: Any = sys.modules[type(model).__module__]
    original = file.eager_attention_forward

    def forward(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, **settings: Any) -> Any:
        return attend(at, module, q, k, v, mask, scaling=settings["scaling"], softcap=settings.get("softcap"))

    file.eager_attention_forward = forward
    try:
        yield
    finally:
        file.eager_attention_forward = original


def rotate(module: Any, raw: Tensor, positions: Any, letter: str) -> Tensor:
    """Raw queries or keys (row, head, token, head_dim) after the family's own norm and RoPE of a whole row of heads."""
    file, kind = sys.modules[type(module).__module__], type(module).__name__
    if kind in ("GPT2Attention", "OPTAttention"):
        return raw * module.scaling if kind == "OPTAttention" and letter == "q" else raw
    if kind == "Llama4TextAttention":
        return _rotate_llama4(file, module, raw, positions, letter)
    if kind in ("StableLmAttention", "PhiAttention"):
        normed = _norm_heads(getattr(module, f"{letter}_layernorm"), raw)
        turned, rest = normed[..., : module.rotary_ndims], normed[..., module.rotary_ndims :]
        return torch.cat([file.apply_rotary_pos_emb(turned, turned, *positions)[0], rest], dim=-1)
    norm = getattr(module, f"{letter}_norm", None)
    normed = raw if norm is None else norm.forward(raw)  # its hooks belong to the model's own call
    if kind.startswith(("Gemma3n", "Gemma4")):
        rotated: Tensor = file.apply_rotary_pos_emb(normed, *positions)
        return rotated
    both: tuple[Tensor, Tensor] = file.apply_rotary_pos_emb(normed, normed, *positions)
    return both[0]


def _norm_heads(norm: Any, raw: Tensor) -> Tensor:
    """StableLM has a norm for every (KV) head; several query heads may share one. Phi has one for all."""
    if not hasattr(norm, "norms"):
        normed: Tensor = norm(raw)
        return normed
    group = raw.shape[1] // len(norm.norms)
    return torch.stack([norm.norms[head // group](raw[:, head]) for head in range(raw.shape[1])], dim=1)


def _rotate_llama4(file: Any, module: Any, raw: Tensor, positions: Any, letter: str) -> Tensor:
    """Layers with RoPE norm after it; in the others the query grows with its position."""
    if module.use_rope:
        per_token = raw.transpose(1, 2)  # (row, token, head, head_dim)
        rotated: Tensor = module.qk_norm(file.apply_rotary_emb(per_token, per_token, positions)[0]).transpose(1, 2)
        return rotated
    if letter == "k":
        return raw
    token = torch.arange(raw.shape[2], dtype=torch.float32)
    growth: Tensor = torch.log1p(torch.floor((token + 1) / module.floor_scale)) * module.attn_scale + 1  # (token,)
    return raw * growth[:, None].to(raw)


def norm_values(module: Any, raw: Tensor) -> Tensor:
    """Raw values (row, head, token, head_dim) as attention sees them: Gemma 3n and 4 norm them."""
    normed: Tensor = module.v_norm.forward(raw) if hasattr(module, "v_norm") else raw
    return normed
