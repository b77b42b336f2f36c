"""Find the anatomy of a model.

Of the known layouts of norms and branches in a decoder layer, the self-check keeps one that rebuilds every layer.

The decoder stack comes from the model's own accessor, the parts of a layer from the names of its modules, and what
names do not show from `rebinding.surgery.families`. A model for which this fails is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import nn

from rebinding.surgery.anatomy import NOWHERE, Anatomy, Branches, LayerParts, Mask, Projection
from rebinding.surgery.families import FAMILIES, Family

SEQUENTIAL = (
    Branches("input_layernorm", "", "post_attention_layernorm", ""),
    Branches("", "post_attention_layernorm", "", "post_feedforward_layernorm"),
    Branches("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
    Branches("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"),
    Branches("ln_1", "", "ln_2", ""),
    Branches("self_attn_layer_norm", "", "final_layer_norm", ""),
)
PARALLEL = (
    Branches("input_layernorm", "", "input_layernorm", "", is_parallel=True),
    Branches("input_layernorm", "", "post_attention_layernorm", "", is_parallel=True),
    Branches("ln_1", "", "ln_1", "", is_parallel=True),
)


def layouts(layer: nn.Module, text: Any) -> Iterator[Branches]:
    """The layouts with exactly the norms that a layer has, the likeliest first.

    Norms of queries and keys belong to attention and do not count.
    """
    names = frozenset(name for name, _ in layer.named_children() if "norm" in name or name.startswith("ln_"))
    factor = float(getattr(text, "residual_multiplier", None) or 1.0)
    is_parallel = bool(getattr(layer, "use_parallel_residual", False))
    for layout in (*PARALLEL, *SEQUENTIAL) if is_parallel else (*SEQUENTIAL, *PARALLEL):
        if layout.names == names:
            yield replace(layout, factor=factor)


class AnatomyError(ValueError):
    """The parts of a model cannot be identified."""


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
        logit_factor=_logit_factor(text, family),
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


def _logit_factor(text: Any, family: Family) -> float:
    if getattr(text, "logits_scaling", None):
        return float(text.logits_scaling) ** (1 if family.multiplies_logits else -1)
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
