"""What differs between model families, as data: sizes, paths, norm layout, caps and windows.

No family is known by name. The decoder stack comes from the model's own accessor, the projections from the
names of the attention module's children, the norm layout from the names of a layer's children. A model for
which this fails is refused. A forward pass at load checks that the derivation is right (`rebinding.models.selfcheck`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

NormLayout: TypeAlias = Literal["pre", "sandwich", "post", "unknown"]


class AnatomyError(ValueError):
    """The parts of a model cannot be identified."""


@dataclass(frozen=True)
class Projection:
    """Where a site of a layer comes from: a module below the layer and a slice of its output."""

    module: str
    start: int
    stop: int


@dataclass(frozen=True)
class Anatomy:
    """The parts of a decoder, by path. Paths of a layer are relative to that layer."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    hidden: int
    vocabulary: int
    decoder: str
    layers: str
    attention: str
    mlp: str
    q: Projection
    k: Projection
    v: Projection
    output: str
    final_norm: str
    head: str
    norms: NormLayout
    query_key_norms: bool
    score_softcap: float | None
    logit_softcap: float | None
    logit_factor: float
    windows: tuple[int | None, ...]

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.n_heads // self.n_kv_heads

    def kv_head(self, head: int) -> int:
        """The KV head that a query head reads."""
        return head // self.group

    def output_of(self, site: str) -> Projection:
        """The module and slice of its output that hold a site: `q`, `k`, `v`, or `mlp_out` (the whole output)."""
        mlp = Projection(self.mlp, 0, self.hidden)
        return {"q": self.q, "k": self.k, "v": self.v, "mlp_out": mlp}[site]

    def layer_modules(self, model: nn.Module) -> nn.ModuleList:
        """The decoder layers of a model."""
        layers = model.get_submodule(self.layers)
        assert isinstance(layers, nn.ModuleList)
        return layers

    def logits(self, model: nn.Module, resid: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Logits from the input of the final norm: norm, head, the family's factor, soft cap.

        With `tokens` (row, token), only the logits of those tokens: (row, position, token). `resid` is (row, position,
        hidden).
        """
        head, entry = model.get_submodule(self.head), model.get_submodule(self.final_norm)(resid)
        raw: Tensor = head(entry) if tokens is None else _logits_of(head, entry, tokens)
        raw = raw * self.logit_factor if self.logit_factor != 1.0 else raw
        return raw if self.logit_softcap is None else torch.tanh(raw / self.logit_softcap) * self.logit_softcap

    def attention_write(self, layer: nn.Module, output: Tensor) -> Tensor:
        """The attention branch's addition to the residual, from the output of the output projection."""
        return _branch(layer, "post_attention_layernorm", output) if self.norms in ("sandwich", "post") else output

    def attention_input(self, layer: nn.Module, resid: Tensor) -> Tensor:
        """The input of a layer's projections, from its residual input."""
        return resid if self.norms == "post" else _branch(layer, "input_layernorm", resid)

    def mlp_write(self, layer: nn.Module, resid: Tensor, edit: Callable[[Tensor], Tensor] = lambda out: out) -> Tensor:
        """The MLP branch's addition to the residual; `edit` gets the output of the MLP module."""
        mlp = layer.get_submodule(self.mlp)
        if self.norms == "pre":
            return edit(mlp(_branch(layer, "post_attention_layernorm", resid)))
        entry = resid if self.norms == "post" else _branch(layer, "pre_feedforward_layernorm", resid)
        return _branch(layer, "post_feedforward_layernorm", edit(mlp(entry)))


def _logits_of(head: nn.Module, entry: Tensor, tokens: Tensor) -> Tensor:
    """Logits of a few tokens (row, position, token). A head that is no plain matrix computes its whole vocabulary."""
    if type(head) is not nn.Linear or head.weight.device.type == "meta":
        logits: Tensor = head(entry)
        return logits.gather(-1, tokens.to(logits.device)[:, None].expand(-1, logits.shape[1], -1))
    tokens = tokens.to(head.weight.device)
    logits = entry.to(head.weight.device) @ head.weight[tokens].transpose(1, 2)  # (row, position, token)
    return logits if head.bias is None else logits + head.bias[tokens][:, None]


def _branch(layer: nn.Module, name: str, value: Tensor) -> Tensor:
    out: Tensor = layer.get_submodule(name)(value)
    return out


def derive(model: nn.Module) -> Anatomy:
    """The anatomy of a Hugging Face causal language model; of its text tower if it has several."""
    config: Any = model.config
    text = config.get_text_config()
    decoder, decoder_path = _decoder(model)
    layers = next((name for name in ("layers", "h") if isinstance(getattr(decoder, name, None), nn.ModuleList)), None)
    if layers is None:
        raise AnatomyError(f"{type(decoder).__name__} keeps no list of layers under the names layers or h")
    first = getattr(decoder, layers)[0]
    attention = _child(first, ("self_attn", "attn", "attention"), "attention module")
    n_heads = text.num_attention_heads
    n_kv = getattr(text, "num_key_value_heads", None) or n_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // n_heads
    module = getattr(first, attention)
    q, k, v = _projections(module, attention, n_heads * head_dim, n_kv * head_dim)
    return Anatomy(
        n_layers=len(getattr(decoder, layers)),
        n_heads=n_heads,
        n_kv_heads=n_kv,
        head_dim=head_dim,
        hidden=text.hidden_size,
        vocabulary=text.vocab_size,
        decoder=decoder_path,
        layers=f"{decoder_path}.{layers}",
        attention=attention,
        mlp=_child(first, ("mlp", "feed_forward", "block_sparse_moe"), "MLP"),
        q=q,
        k=k,
        v=v,
        output=f"{attention}.{_child(module, ('o_proj', 'out_proj', 'dense', 'c_proj'), 'output projection')}",
        final_norm=f"{decoder_path}.{_child(decoder, ('norm', 'final_layernorm', 'ln_f'), 'final norm')}",
        head=_path_of(model, model.get_output_embeddings()),  # type: ignore[operator]  # a method nn.Module hides
        norms=_norm_layout(first, text),
        query_key_norms=hasattr(module, "q_norm"),
        score_softcap=getattr(text, "attn_logit_softcapping", None),
        logit_softcap=getattr(text, "final_logit_softcapping", None),
        logit_factor=_logit_factor(text),
        windows=_windows(text, len(getattr(decoder, layers))),
    )


def _decoder(model: nn.Module) -> tuple[nn.Module, str]:
    try:
        decoder = model.get_decoder()  # type: ignore[operator]  # a method nn.Module hides
    except AttributeError:
        raise AnatomyError(f"{type(model).__name__} does not say where its decoder is (no get_decoder)") from None
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


def _projections(module: nn.Module, path: str, q: int, kv: int) -> tuple[Projection, Projection, Projection]:
    if all(hasattr(module, f"{letter}_proj") for letter in "qkv"):
        widths = {"q": q, "k": kv, "v": kv}
        parts = tuple(Projection(f"{path}.{letter}_proj", 0, width) for letter, width in widths.items())
        return parts[0], parts[1], parts[2]
    for name in ("qkv_proj", "c_attn"):
        if hasattr(module, name):
            fused = f"{path}.{name}"
            return Projection(fused, 0, q), Projection(fused, q, q + kv), Projection(fused, q + kv, q + 2 * kv)
    children = ", ".join(name for name, _ in module.named_children())
    raise AnatomyError(
        f"{type(module).__name__}: no q_proj, k_proj, v_proj and no fused qkv_proj or c_attn; it has {children}"
    )


def _norm_layout(layer: nn.Module, text: Any) -> NormLayout:
    names = {name for name, _ in layer.named_children() if "norm" in name}
    if getattr(text, "residual_multiplier", 1.0) != 1.0:
        return "unknown"
    pre, post = "input_layernorm", "post_feedforward_layernorm"
    layouts: dict[frozenset[str], NormLayout] = {
        frozenset({pre, "post_attention_layernorm"}): "pre",
        frozenset({"post_attention_layernorm", post}): "post",
        frozenset({pre, "post_attention_layernorm", "pre_feedforward_layernorm", post}): "sandwich",
    }
    return layouts.get(frozenset(names), "unknown")


def _logit_factor(text: Any) -> float:
    if getattr(text, "logits_scaling", None):
        return 1.0 / float(text.logits_scaling)
    return float(getattr(text, "logit_scale", None) or 1.0)


def _windows(text: Any, n_layers: int) -> tuple[int | None, ...]:
    window = getattr(text, "sliding_window", None)
    kinds = (
        getattr(text, "layer_types", None) or ["full_attention" if window is None else "sliding_attention"] * n_layers
    )
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
