"""The parts of one decoder layer, as data. Paths are relative to the layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from rebinding.surgery.families import Rotation

End: TypeAlias = Literal["output", "input"]


@dataclass(frozen=True)
class Projection:
    """Where queries, keys or values of a layer come from: a slice of what a module puts out, or takes in.

    The module's numbers are blocks of `width` side by side; the site is `start:stop` of every block.
    """

    module: str
    start: int
    stop: int
    width: int
    end: End = "output"

    def heads(self, value: Tensor, head_dim: int) -> Tensor:
        """The site as (row, head, token, head_dim), a view where it can be."""
        value = value.flatten(2)  # some norms take (row, token, head, head_dim)
        if value.shape[-1] == self.width:
            part: Tensor = value[..., self.start : self.stop]
        else:
            part = value.unflatten(-1, (-1, self.width))[..., self.start : self.stop].flatten(-2)
        heads: Tensor = part.unflatten(-1, (-1, head_dim)).transpose(1, 2)
        return heads

    def replaced(self, value: Tensor, heads: Tensor) -> Tensor:
        """The module's numbers with the site replaced by `heads` (row, head, token, head_dim)."""
        result = value.clone(memory_format=torch.contiguous_format)
        blocks = result.view(*result.shape[:2], -1, self.width)  # (row, token, block, width)
        blocks[..., self.start : self.stop] = heads.transpose(1, 2).reshape(*blocks.shape[:3], -1)
        return result


NOWHERE = Projection("", 0, 0, 1)


@dataclass(frozen=True)
class Mask:
    """Which earlier tokens a query attends to: all, the last `size`, or those of its own chunk of `size`."""

    kind: Literal["full", "sliding", "chunked"] = "full"
    size: int | None = None

    def visible(self, n_queries: int, n_keys: int) -> Tensor:
        """Flags (query, key)."""
        query, key = torch.arange(n_queries)[:, None], torch.arange(n_keys)[None]
        if self.size is None:
            return key <= query
        if self.kind == "chunked":
            return (key <= query) & (key // self.size == query // self.size)
        return (key <= query) & (query - key < self.size)


@dataclass(frozen=True)
class Branches:
    """How a layer adds its two branches to the residual stream: the norms before and after each, by name.

        r <- r + factor * after(attention(before(r)))          r <- r + factor * after(mlp(before(r)))

    `is_parallel`: both branches read the layer's input.
    """

    attention_before: str = ""
    attention_after: str = ""
    mlp_before: str = ""
    mlp_after: str = ""
    is_parallel: bool = False
    factor: float = 1.0

    @property
    def names(self) -> frozenset[str]:
        """The norms that a layer must have."""
        norms = (self.attention_before, self.attention_after, self.mlp_before, self.mlp_after)
        return frozenset(name for name in norms if name)

    def write(self, layer: nn.Module, norm: str, output: Tensor) -> Tensor:
        """A branch's addition to the residual stream, from the output of its last module."""
        added = apply(layer, norm, output)
        return added if self.factor == 1.0 else added * self.factor


@dataclass(frozen=True)
class LayerParts:
    """The parts of one layer. A layer without attention heads has a `mixer` in place of them, and `n_heads` 0.

    `output` is the output projection, `mlp` the modules of the MLP in order. `key_layer` is the layer whose keys and
    values this one attends to: itself, or one below. `query_factor` multiplies queries before attention.
    """

    number: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    attention: str
    q: Projection
    k: Projection
    v: Projection
    output: str
    mlp: tuple[str, ...]
    mask: Mask
    key_layer: int
    mixer: str = ""
    q_norm: str = ""
    k_norm: str = ""
    v_norm: str = ""
    rotation: Rotation = "pair"
    query_factor: float = 1.0
    score_factor: float = 1.0
    has_gate: bool = False
    has_sinks: bool = False

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.n_heads // self.n_kv_heads

    @property
    def has_own_keys(self) -> bool:
        """Whether the layer has keys and values of its own."""
        return self.n_heads > 0 and self.key_layer == self.number

    def kv_head(self, head: int) -> int:
        """The KV head that a query head reads."""
        return head // self.group

    def projection(self, site: str) -> Projection:
        """The module and slice that hold `q`, `k` or `v`."""
        return {"q": self.q, "k": self.k, "v": self.v}[site]

    def module_of(self, site: str) -> tuple[str, End]:
        """The module of a site, `q`, `k`, `v` or `mlp_out`, and which end of it."""
        if site == "mlp_out":
            return self.mlp[-1], "output"
        projection = self.projection(site)
        return projection.module, projection.end


def apply(layer: nn.Module, path: str, value: Tensor) -> Tensor:
    """A module of a layer applied to a value; an empty path is the identity."""
    if not path:
        return value
    out: Tensor | tuple[Tensor, ...] = layer.get_submodule(path)(value)
    out = out[0] if isinstance(out, tuple) else out
    return out if out.ndim == value.ndim else out.view(*value.shape[:-1], -1)  # some MLPs flatten rows and tokens
