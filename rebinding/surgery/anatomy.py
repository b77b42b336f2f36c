"""What differs between model families, as data: sizes, paths, norms, caps and windows, layer by layer.

`rebinding.surgery.derivation` finds it in a model; a forward pass at load checks that it is right
(`rebinding.models.selfcheck`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from rebinding.surgery.parts import Branches, LayerParts, apply


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
    ) -> Tensor:
        """A layer's output from its residual input and the output of its output projection.

        `edit` gets the output of the MLP.
        """
        branches = self._branches
        middle = resid + self.attention_write(layer, output)
        value = apply(layer, branches.mlp_before, resid if branches.is_parallel else middle)
        for module in self.parts[number].mlp:
            value = apply(layer, module, value)
        return middle + branches.write(layer, branches.mlp_after, edit(value))

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
