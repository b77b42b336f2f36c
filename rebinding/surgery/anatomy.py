"""What differs between model families, as data: sizes, paths, norms, caps and windows, layer by layer.

The decoder stack comes from the model's own accessor, the parts of a layer from the names of its modules, and what
names do not show from `rebinding.surgery.families`. A model for which this fails is refused. A forward pass at load
checks that the derivation is right (`rebinding.models.selfcheck`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from rebinding.surgery.families import FAMILIES, Family
from rebinding.surgery.layouts import layouts
from rebinding.surgery.parts import NOWHERE, Branches, LayerParts, Mask, Projection, apply


class AnatomyError(ValueError):
    """The parts of a model cannot be identified."""


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
    def shares_keys(self) -> bool:
        """Whether some layer attends to the keys and values of another one."""
        return any(part.key_layer != part.number for part in self.parts)

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
    if type(head) is not nn.Linear or head.weight.device.type == "meta":
        logits: Tensor = head(entry)
        return logits.gather(-1, tokens.to(logits.device)[:, None].expand(-1, logits.shape[1], -1))
    tokens = tokens.to(head.weight.device)
    logits = entry.to(head.weight.device) @ head.weight[tokens].transpose(1, 2)  # (row, position, token)
    return logits if head.bias is None else logits + head.bias[tokens][:, None]


def derive(model: nn.Module) -> Anatomy:
    """The anatomy of a Hugging Face causal language model; of its text tower if it has several."""
    config: Any = model.config
    text = config.get_text_config()
    family = FAMILIES.get(text.model_type, Family())
    decoder, decoder_path = _decoder(model)
    name = next((name for name in ("layers", "h") if isinstance(getattr(decoder, name, None), nn.ModuleList)), None)
    if name is None:
        raise AnatomyError(f"{type(decoder).__name__} keeps no list of layers under the names layers or h")
    layers = getattr(decoder, name)
    masks, key_layers = _masks(text, len(layers)), _key_layers(text, len(layers))
    parts = tuple(
        _layer_parts(layer, number, text, family, mask, key_layer)
        for number, (layer, mask, key_layer) in enumerate(zip(layers, masks, key_layers, strict=True))
    )
    _check_one_kind(layers, parts)
    streams = getattr(text, family.streams) if family.streams else 1
    final_norms = ("norm", "final_layernorm", "final_layer_norm", "ln_f")
    return Anatomy(
        parts=parts,
        hidden=text.hidden_size * streams,
        vocabulary=text.vocab_size,
        decoder=decoder_path,
        layers=f"{decoder_path}.{name}",
        final_norm=f"{decoder_path}.{_child(decoder, final_norms, 'final norm')}",
        head=_path_of(model, model.get_output_embeddings()),  # type: ignore[operator]  # a method nn.Module hides
        branches=next(iter(layouts(layers[0], text)), None) if streams == 1 else None,
        score_softcap=getattr(text, "attn_logit_softcapping", None),
        logit_softcap=getattr(text, "final_logit_softcapping", None),
        logit_factor=_logit_factor(text),
        streams=streams,
        needs_hook=family.needs_hook,
        counts_tokens=family.counts_tokens,
        prompt_inputs=family.prompt_inputs,
    )


def _check_one_kind(layers: nn.ModuleList, parts: tuple[LayerParts, ...]) -> None:
    """Refuse layers that attend in different ways, unless the table of families names the other way."""
    kinds = {
        type(layers[part.number].get_submodule(part.attention)): part.number for part in reversed(parts) if part.n_heads
    }
    if len(kinds) > 1:
        names = ", ".join(
            f"{kind.__name__} in layer {number}" for kind, number in sorted(kinds.items(), key=lambda kind: kind[1])
        )
        raise AnatomyError(f"its layers mix tokens in different ways: {names}")


def _layer_parts(layer: nn.Module, number: int, text: Any, family: Family, mask: Mask, key_layer: int) -> LayerParts:
    try:
        return _checked_parts(layer, number, text, family, mask, key_layer)
    except AnatomyError as error:
        raise AnatomyError(f"layer {number}: {error}") from None


def _checked_parts(layer: nn.Module, number: int, text: Any, family: Family, mask: Mask, key_layer: int) -> LayerParts:
    mlp = family.mlp or (_child(layer, ("mlp", "feed_forward", "block_sparse_moe"), "MLP"),)
    if family.mixer and hasattr(layer, family.mixer):
        parts = (0, 0, 0, "", NOWHERE, NOWHERE, NOWHERE, "")
        return LayerParts(number, *parts, mlp, mask, number, mixer=family.mixer)
    path = _child(layer, ("self_attn", "attn", "attention"), "attention module")
    module: Any = getattr(layer, path)
    n_heads = text.num_attention_heads
    if isinstance(groups := getattr(module, "num_key_value_groups", None), int):
        n_kv = n_heads // groups
    else:
        n_kv = getattr(text, "num_key_value_heads", None) or n_heads
    own_dim = getattr(module, "head_dim", None)
    head_dim = own_dim if isinstance(own_dim, int) else text.hidden_size // n_heads
    q, k, v = _projections(module, path, family, n_heads * head_dim, n_kv * head_dim, head_dim, key_layer == number)
    scale = float(module.scaling) if family.scales_queries else 1.0
    return LayerParts(
        number,
        n_heads,
        n_kv,
        head_dim,
        path,
        q,
        k,
        v,
        f"{path}.{_child(module, ('o_proj', 'out_proj', 'dense', 'c_proj'), 'output projection')}",
        mlp,
        mask,
        key_layer,
        q_norm=_optional(module, ("q_norm", "q_layernorm", family.common_norm)),
        k_norm=_optional(module, ("k_norm", "k_layernorm", family.common_norm)),
        v_norm=_optional(module, ("v_norm",)),
        rotation="none" if not getattr(module, "use_rope", True) else family.rotation,
        query_factor=scale,
        score_factor=1.0 if family.scales_queries else float(getattr(module, "scaling", head_dim**-0.5)),
        has_gate=family.has_gate,
        has_sinks=hasattr(module, "sinks"),
    )


def _decoder(model: nn.Module) -> tuple[nn.Module, str]:
    try:
        decoder = model.get_decoder()  # type: ignore[operator]  # a method nn.Module hides
    except AttributeError:
        raise AnatomyError(f"{type(model).__name__} does not say where its decoder is (no get_decoder)") from None
    if decoder is model:  # some models name their decoder otherwise than they say
        decoder = next((child for child in model.children() if hasattr(child, "layers")), model)
    if decoder is model:
        raise AnatomyError(f"{type(model).__name__} has no decoder apart from itself: not a causal language model?")
    return decoder, _path_of(model, decoder)


def _path_of(model: nn.Module, part: nn.Module | None) -> str:
    for name, module in model.named_modules():
        if module is part:
            return str(name)
    raise AnatomyError(f"{type(model).__name__}: {type(part).__name__} is not one of its modules")


def _child(parent: nn.Module, names: tuple[str, ...], what: str) -> str:
    for name in names:
        if isinstance(getattr(parent, name, None), nn.Module):
            return name
    children = ", ".join(name for name, _ in parent.named_children())
    raise AnatomyError(f"no {what} in {type(parent).__name__}: looked for {', '.join(names)}; it has {children}")


def _optional(parent: nn.Module, names: tuple[str, ...]) -> str:
    """The first of these names that is a module of `parent`, or an empty string."""
    return next((name for name in names if name and isinstance(getattr(parent, name, None), nn.Module)), "")


def _projections(
    module: nn.Module, path: str, family: Family, q: int, kv: int, head_dim: int, has_keys: bool
) -> tuple[Projection, Projection, Projection]:
    """Queries, keys and values; keys and values are nowhere in a layer that reuses those of another one."""
    queries = Projection(f"{path}.q_proj", 0, q, q)
    if family.has_gate:
        queries = Projection(f"{path}.q_proj", 0, head_dim, 2 * head_dim)
    if not has_keys:
        return queries, NOWHERE, NOWHERE
    if all(isinstance(getattr(module, f"{letter}_proj", None), nn.Module) for letter in "qkv"):
        return queries, Projection(f"{path}.k_proj", 0, kv, kv), Projection(f"{path}.v_proj", 0, kv, kv)
    if all(hasattr(module, name) for name in ("q_proj", "k_proj", "k_norm", "v_norm")):  # one projection for both
        keys, values = (Projection(f"{path}.{letter}_norm", 0, kv, kv, "input") for letter in "kv")
        return queries, keys, values
    if family.fused_by_head and hasattr(module, family.fused_by_head):
        fused, width = f"{path}.{family.fused_by_head}", 3 * head_dim
        first, second, third = (Projection(fused, n * head_dim, (n + 1) * head_dim, width) for n in range(3))
        return first, second, third
    for name in ("qkv_proj", "c_attn"):
        if hasattr(module, name):
            fused, width = f"{path}.{name}", q + 2 * kv
            return (
                Projection(fused, 0, q, width),
                Projection(fused, q, q + kv, width),
                Projection(fused, q + kv, width, width),
            )
    children = ", ".join(name for name, _ in module.named_children())
    raise AnatomyError(
        f"{type(module).__name__}: no q_proj, k_proj, v_proj and no fused qkv_proj or c_attn; it has {children}"
    )


def _logit_factor(text: Any) -> float:
    if getattr(text, "logits_scaling", None):
        return 1.0 / float(text.logits_scaling)
    return float(getattr(text, "logit_scale", None) or 1.0)


def _masks(text: Any, n_layers: int) -> list[Mask]:
    window, chunk = getattr(text, "sliding_window", None), getattr(text, "attention_chunk_size", None)
    usual = "full_attention" if window is None else "sliding_attention"
    sizes = {"sliding_attention": Mask("sliding", window), "chunked_attention": Mask("chunked", chunk)}
    return [sizes.get(kind, Mask()) for kind in getattr(text, "layer_types", None) or [usual] * n_layers]


def _key_layers(text: Any, n_layers: int) -> list[int]:
    """For each layer, the layer whose keys and values it attends to."""
    modes = getattr(text, "kv_sharing_modes", None) or [None] * n_layers
    stored: dict[str, int] = {}
    layers = []
    for number, mode in enumerate(modes):
        kind = (getattr(text, "layer_types", None) or [""] * n_layers)[number]
        if mode == "store":
            stored[kind] = number
        layers.append(stored[kind] if mode == "reuse" else number)
    return layers
