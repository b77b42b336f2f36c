"""What differs between model families, as data: sizes, paths, norms, caps and windows, layer by layer.

The parts of one decoder layer have paths relative to the layer.

`rebinding.surgery.derivation` finds it in a model; a forward pass at load checks that it is right
(`rebinding.models.selfcheck`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

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


@dataclass(frozen=True)
class Anatomy:
    """The parts of a decoder, by path; `parts` are those of each layer.

    `hidden` is the width of the residual stream: `streams` parallel streams side by side. `branches` is None where the
    layout of a layer's norms is unknown. `needs_hook`: layers do not pass keywords on to attention. `counts_tokens`:
    attention counts positions from the length of its cache. `prompt_inputs`: keywords of a layer's call that depend on
    the prompt.
    """

    parts: tuple[LayerParts, ...]
    hidden: int
    vocabulary: int
    decoder: str
    layers: str
    final_norm: str
    head: str
    branches: Branches | None
    score_softcap: float | None = None
    logit_softcap: float | None = None
    logit_factor: float = 1.0
    streams: int = 1
    needs_hook: bool = False
    counts_tokens: bool = False
    prompt_inputs: tuple[str, ...] = ()

    @cached_property
    def n_layers(self) -> int:
        """Decoder layers."""
        return len(self.parts)

    @cached_property
    def n_heads(self) -> int:
        """Query heads of a layer that has heads."""
        return max(part.n_heads for part in self.parts)

    @cached_property
    def heads(self) -> tuple[tuple[int, int], ...]:
        """Every head, as (layer, head)."""
        return tuple((part.number, head) for part in self.parts for head in range(part.n_heads))

    def width(self, site: str) -> int:
        """The width of `resid` or `mlp_out`."""
        return self.hidden // self.streams if site == "mlp_out" else self.hidden

    @cached_property
    def has_mixers(self) -> bool:
        """Whether some layer carries a state from token to token."""
        return any(part.mixer for part in self.parts)

    @cached_property
    def key_sources(self) -> frozenset[int]:
        """The layers whose keys and values other layers reuse."""
        return frozenset(part.key_layer for part in self.parts if part.n_heads and not part.has_own_keys)

    @cached_property
    def shares_keys(self) -> bool:
        """Whether some layer attends to the keys and values of another one."""
        return bool(self.key_sources)

    def layer_modules(self, model: nn.Module) -> nn.ModuleList:
        """The decoder layers of a model."""
        layers = model.get_submodule(self.layers)
        assert isinstance(layers, nn.ModuleList)
        return layers

    def logits(self, model: nn.Module, resid: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Logits from the output of the last layer: norm, head, the family's factor, soft cap.

        With `tokens` (row, token), only the logits of those tokens: (row, position, token). `resid` is (row, position,
        hidden).
        """
        resid = resid if self.streams == 1 else self._merged(model, resid)
        head, entry = model.get_submodule(self.head), model.get_submodule(self.final_norm)(resid)
        raw: Tensor = head(entry) if tokens is None else _logits_of(head, entry, tokens)
        raw = raw * self.logit_factor if self.logit_factor != 1.0 else raw
        return raw if self.logit_softcap is None else torch.tanh(raw / self.logit_softcap) * self.logit_softcap

    def _merged(self, model: nn.Module, resid: Tensor) -> Tensor:
        """The mean (row, position, width) of all streams, each projected and scaled to the size of the first."""
        first, *rest = resid.chunk(self.streams, dim=-1)
        projections: Any = model.get_submodule(self.decoder).altup_unembed_projections
        size = first.square().mean(dim=-1, keepdim=True).sqrt()
        merged = [first]
        for projection, stream in zip(projections, rest, strict=True):
            projected = projection(stream)
            own_size = projected.square().mean(dim=-1, keepdim=True).clamp(min=1e-5).sqrt()
            merged.append(projected * size / own_size)
        return torch.stack(merged).mean(dim=0)

    def to_layer(self, resid: Tensor) -> Tensor:
        """The residual stream (row, token, hidden) as a layer takes it: streams first, where there are several."""
        if self.streams == 1:
            return resid
        streams: Tensor = resid.unflatten(-1, (self.streams, -1))
        return streams.permute(2, 0, 1, 3).contiguous()  # (stream, row, token, width)

    def from_layer(self, value: Tensor) -> Tensor:
        """The inverse of `to_layer`."""
        return value if self.streams == 1 else value.permute(1, 2, 0, 3).flatten(2)  # (row, token, hidden)

    def attention_write(self, layer: nn.Module, output: Tensor) -> Tensor:
        """The attention branch's addition to the residual, from the output of the output projection.

        The output itself where the layout of the norms is unknown.
        """
        return output if self.branches is None else self._branches.write(layer, self._branches.attention_after, output)

    @property
    def lacks_middle(self) -> str:
        """Why no layer has a residual stream between attention and MLP; empty if they have."""
        if self.branches is None:
            return "the layer adds attention and MLP to the residual stream in a way that is not known"
        if self.has_mixers:
            return "the layer is of a model in which some have a state in place of attention heads"
        return "the layer computes attention and MLP side by side, from its input" if self.branches.is_parallel else ""

    def last_of_attention(self, parts: LayerParts) -> str:
        """The module whose output, times the family's factor, attention adds to the residual stream."""
        return self._branches.attention_after or parts.output or parts.mixer

    def middle(self, resid: Tensor, added: Tensor) -> Tensor:
        """The residual stream between attention and MLP, from a layer's input and the output of that module."""
        return resid + (added if self._branches.factor == 1.0 else added * self._branches.factor)

    def added_for(self, middle: Tensor, resid: Tensor) -> Tensor:
        """The inverse: what attention has to add, so that the residual stream is this."""
        return (middle - resid) / self._branches.factor

    def mlp_write(self, layer: nn.Module, output: Tensor) -> Tensor:
        """The MLP's addition to the residual, from its output; the output itself where the layout is unknown."""
        return output if self.branches is None else self._branches.write(layer, self._branches.mlp_after, output)

    def attention_input(self, layer: nn.Module, resid: Tensor) -> Tensor:
        """The input of a layer's projections, from its residual input."""
        return apply(layer, self._branches.attention_before, resid)

    def layer_output(
        self,
        layer: nn.Module,
        number: int,
        resid: Tensor,
        output: Tensor,
        edit: Callable[[Tensor], Tensor] = lambda out: out,
        edit_middle: Callable[[Tensor], Tensor] = lambda middle: middle,
    ) -> Tensor:
        """A layer's output from its residual input and the output of its output projection.

        `edit` gets the output of the MLP, `edit_middle` the residual stream between attention and MLP.
        """
        branches = self._branches
        middle = edit_middle(resid + self.attention_write(layer, output))
        value = apply(layer, branches.mlp_before, resid if branches.is_parallel else middle)
        for module in self.parts[number].mlp:
            value = apply(layer, module, value)
        return middle + self.mlp_write(layer, edit(value))

    @property
    def _branches(self) -> Branches:
        assert self.branches is not None, "the norm layout of this model is unknown"
        return self.branches


def _logits_of(head: nn.Module, entry: Tensor, tokens: Tensor) -> Tensor:
    """Logits of a few tokens (row, position, token). A head that is no plain matrix computes its whole vocabulary."""
    if type(head) is not nn.Linear:
        logits: Tensor = head(entry)
        return logits.gather(-1, tokens.to(logits.device)[:, None].expand(-1, logits.shape[1], -1))
    tokens = tokens.to(head.weight.device)
    logits = entry.to(head.weight.device) @ head.weight[tokens].transpose(1, 2)  # (row, position, token)
    return logits if head.bias is None else logits + head.bias[tokens][:, None]
