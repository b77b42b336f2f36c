"""Where each site of each family sits, written by hand from the library's source. Nothing here is derived.

A projection's output (row, token, width) holds the heads of a site in one of three orders: alone; after each other with
those of other sites (GPT-2: all queries, all keys, all values); or head by head (GPT-NeoX: query, key and value of head
0, of head 1, ...; Qwen3-Next: query and gate of head 0, ...).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from rebinding.surgery.sites import HEADLESS
from tests.families.models import N_HEADS

BEFORE_MLP = "pre_feedforward_layernorm"


@dataclass(frozen=True)
class Projection:
    """A module below a layer, the shape of its output's last axis, and which entry of which axis holds the site.

    Without a shape, the site is the module's input, one vector a head.
    """

    module: str
    shape: tuple[int, ...] = ()
    axis: int | None = None
    entry: int = 0

    def view(self, value: Tensor) -> Tensor:
        """The site inside the module's output (or its input), as a view: (row, token, head, head_dim)."""
        parts = value.unflatten(-1, self.shape) if self.shape else value
        return parts if self.axis is None else parts.select(self.axis, self.entry)


@dataclass(frozen=True)
class Layer:
    """Sizes and modules of one layer, by path below it. A layer with a mixer has no heads.

    `keys_of` is an earlier layer whose keys and values this one reuses.
    """

    head_dim: int
    kv_heads: int
    q: Projection | None
    k: Projection | None
    v: Projection | None
    attention: str = "self_attn"
    output: str = "self_attn.o_proj"
    mlp: str = "mlp"
    mixer: str | None = None
    keys_of: int | None = None

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return N_HEADS // self.kv_heads


@dataclass(frozen=True)
class Table:
    """One family: the path of its layers, the layers, the width of the residual stream, and its streams if several."""

    layers: tuple[Layer, ...]
    hidden: int
    path: str = "model.layers"
    streams: int = 1
    middle: str | None = "post_attention_layernorm"
    """The module that takes in the residual stream between attention and MLP; None where no module does."""

    def layers_with(self, site: str) -> list[int]:
        """The layers that have a site."""
        n = len(self.layers)
        if site in ("resid", "logits"):
            return list(range(n + 1)) if site == "resid" else [n]
        if site == "resid_mid" and self.middle is None:
            return []
        return [number for number in range(n) if site in HEADLESS or self.layers[number].mixer is None]

    def source_of(self, site: str, layer: int) -> int:
        """The layer that computes a site of a layer: another one for reused raw keys and values."""
        reused = self.layers[layer].keys_of if site in ("k", "v") else None
        return layer if reused is None else reused


def _layer(head_dim: int, kv_heads: int = 2) -> Layer:
    """Three projections side by side: the usual layer."""
    q, k, v = (
        Projection(f"self_attn.{letter}_proj", (heads, head_dim))
        for letter, heads in (("q", N_HEADS), ("k", kv_heads), ("v", kv_heads))
    )
    return Layer(head_dim, kv_heads, q, k, v)


def _reusing(layer: Layer, keys_of: int) -> Layer:
    """A layer that attends to keys and values of an earlier one of its kind."""
    return replace(layer, k=None, v=None, keys_of=keys_of)


def _fused(module: str, shape: tuple[int, ...], axis: int) -> tuple[Projection, Projection, Projection]:
    """Queries, keys and values in one projection."""
    return Projection(module, shape, axis, 0), Projection(module, shape, axis, 1), Projection(module, shape, axis, 2)


NEOX = Layer(
    5,
    N_HEADS,
    *_fused("attention.query_key_value", (N_HEADS, 3, 5), -2),
    attention="attention",
    output="attention.dense",
)
GPT2 = Layer(5, N_HEADS, *_fused("attn.c_attn", (3, N_HEADS, 5), -3), attention="attn", output="attn.c_proj")
OPT = replace(_layer(5, N_HEADS), output="self_attn.out_proj", mlp="fc2")
GATED = replace(_layer(10), q=Projection("self_attn.q_proj", (N_HEADS, 2, 10), -2, 0))
LINEAR = Layer(0, 0, None, None, None, attention="", output="", mixer="linear_attn")
QWEN = (LINEAR, GATED, LINEAR, LINEAR, GATED)

SLIDING, FULL = _layer(10), _layer(14)
ONE_PROJECTION = replace(_layer(14, 3), k=Projection("self_attn.k_norm"), v=Projection("self_attn.v_norm"))
"""Gemma 4 with equal keys and values: one projection, then a norm for keys and another for values. What enters the norm
is the raw key, or the raw value: an edit of one leaves the other."""

USUAL = (_layer(10),) * 4
TABLES: dict[str, Table] = {
    **dict.fromkeys(("llama", "mistral", "qwen3"), Table(USUAL, 24)),
    **dict.fromkeys(("gemma2", "gemma3"), Table(USUAL, 24, middle=BEFORE_MLP)),
    "gemma3_multimodal": Table(USUAL, 24, "model.language_model.layers", middle=BEFORE_MLP),
    "gpt_neox": Table((NEOX,) * 4, 30, "gpt_neox.layers", middle=None),
    "gpt_neox_sequential": Table((NEOX,) * 4, 30, "gpt_neox.layers"),
    "opt": Table((OPT,) * 4, 30, "model.decoder.layers", middle="final_layer_norm"),
    "stablelm": Table((_layer(7),) * 4, 42),
    "stablelm_parallel": Table((_layer(7),) * 4, 42, middle=None),
    "nemotron": Table((_layer(9),) * 4, 24),
    "gpt_oss": Table(USUAL, 24),
    "llama4_text": Table((replace(_layer(10), mlp="feed_forward"),) * 4, 24),
    "qwen3_next": Table(QWEN, 24, middle=None),
    "qwen3_5_text": Table(QWEN, 24, middle=None),
    "gemma4_text": Table((SLIDING, FULL, SLIDING, FULL, _reusing(SLIDING, 2), _reusing(FULL, 3)), 24, middle=None),
    "gemma4_text_equal": Table((SLIDING, ONE_PROJECTION) * 3, 24, middle=BEFORE_MLP),
    "gemma4_text_experts": Table((SLIDING, FULL) * 3, 24, middle=None),
    "gemma3n_text": Table((*(SLIDING,) * 4, _reusing(SLIDING, 2), _reusing(SLIDING, 3)), 72, streams=3, middle=None),
    "gpt2": Table((GPT2,) * 4, 30, "transformer.h", middle="ln_2"),
    "phi": Table((replace(_layer(7), output="self_attn.dense"),) * 4, 42, middle=None),
}
