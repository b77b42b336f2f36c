"""Compile a wiring (the heads of a mechanism) into the weights of a Llama, Gemma 2 or Gemma 3 model.

| | Llama | Gemma 2 | Gemma 3 |
|---|---|---|---|
| embedding | as it is | times sqrt(hidden) | times sqrt(hidden) |
| norm weight | w | 1 + w | 1 + w |
| norm of the attention output | - | yes: one head writes a large constant that no head reads | as Gemma 2 |
| norm of q and k | - | - | yes: a large constant in one dimension, weight 0 there |
| soft caps | - | 50 on scores, 30 on logits | - |
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from rebinding.planted.language import CONSTANT, GATE, Softness, Wiring, WiringError, embedding, gap
from rebinding.planted.linter import check_distances
from rebinding.planted.projections import (
    BALLAST,
    NOISE,
    Layout,
    Projections,
    Seat,
    WeightScale,
    constant,
    lay_out,
    seat,
    write_decoy,
    write_line,
    zeros,
)

Architecture: TypeAlias = Literal["llama", "gemma2", "gemma3"]
ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)
WINDOW = 512
"""Sliding window of the Gemmas; wider than any prompt, so that every layer sees the first token."""


@dataclass(frozen=True)
class WiringSizes:
    """The sizes that a wiring needs."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    specials: dict[str, int]


@dataclass(frozen=True)
class ArchitectureTraits:
    """The differences of a family: `norm_offset` is added to norm weights, scores are divided by sqrt(`scaling`)."""

    name: Architecture
    norm_offset: float
    scaled_embedding: bool
    output_norms: bool
    query_key_norms: bool
    scaling: int

    def embedding_scale(self, hidden: int) -> float:
        """The factor of the embedding."""
        return hidden**0.5 if self.scaled_embedding else 1.0


def family(name: str, head_dim: int) -> ArchitectureTraits:
    """The family of an architecture; Gemma's score scale is deliberately not its head size."""
    if name == "llama":
        return ArchitectureTraits("llama", 0.0, False, False, False, head_dim)
    if name == "gemma2":
        return ArchitectureTraits("gemma2", 1.0, True, True, False, 9 * head_dim // 4)
    if name == "gemma3":
        return ArchitectureTraits("gemma3", 1.0, True, True, True, 3 * head_dim // 2)
    raise ValueError(f"there is no architecture {name!r}; the planted models come as {', '.join(ARCHITECTURES)}")


def empty_model(model_family: ArchitectureTraits, shape: WiringSizes) -> Any:
    """A model of the family with the shape's sizes: eager attention, float32, on the CPU.

    Norms are neutral. Matrices are allocated and not filled; the caller writes every one.
    """
    from transformers import (
        Gemma2Config,
        Gemma2ForCausalLM,
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        LlamaConfig,
        LlamaForCausalLM,
    )
    from transformers.initialization import no_init_weights

    common: dict[str, Any] = {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
        "attn_implementation": "eager",
        "dtype": torch.float32,
        **shape.specials,
    }
    windowed: dict[str, Any] = {"sliding_window": WINDOW, "query_pre_attn_scalar": model_family.scaling}
    default = {"rope_type": "default", "rope_theta": 5e5}
    with no_init_weights(), torch.device("cpu"):
        if model_family.name == "llama":
            model: Any = LlamaForCausalLM(LlamaConfig(**common, rope_parameters=default))
        elif model_family.name == "gemma2":
            model = Gemma2ForCausalLM(Gemma2Config(**common, **windowed, rope_parameters=default))
        else:
            local, far = {"rope_type": "default", "rope_theta": 3e5}, {"rope_type": "default", "rope_theta": 1e6}
            rope = {"sliding_attention": local, "full_attention": far}
            model = Gemma3ForCausalLM(Gemma3TextConfig(**common, **windowed, rope_parameters=rope))
    model.tie_weights()
    return model.eval().requires_grad_(False)


def frequencies(model: Any, layer: int) -> Tensor:
    """The rotary frequencies that a layer uses, read from the model (Gemma 3 keeps a set for each kind of layer)."""
    rotary = model.model.rotary_emb
    kinds = getattr(model.config, "layer_types", None)
    name = f"{kinds[layer]}_inv_freq" if kinds and hasattr(rotary, f"{kinds[layer]}_inv_freq") else "inv_freq"
    values: Tensor = getattr(rotary, name)
    return values


HEAD_DIM = 64
INTERMEDIATE = 48
SIZES = ((8, 4), (12, 6), (16, 8))
"""Numbers of heads and KV heads to try, smallest first."""
BALLAST_SIZE = 1000.0
"""The constant of the ballast head in the Gemmas, which makes the norm of the attention output equal at all tokens."""
PADDING, PADDING_DIMENSION = 1e5, 5
"""The constant that pads q and k in Gemma 3, and its dimension (of an otherwise unused pair)."""
MLP_SIZE = 0.02


@dataclass(frozen=True)
class CompiledModel:
    """The model, and which heads hold lines (heads of the mechanism), decoys (random weights) and ballast (which makes
    the norm of the attention output equal at all tokens)."""

    model: Any
    layout: Layout
    seats: tuple[Seat, ...]
    decoys: tuple[tuple[int, int], ...]
    ballast: tuple[tuple[int, int], ...]


def compile_wiring(
    wiring: Wiring, architecture: str, tokenizer: Any, *, softness: Softness, decoys: int | None, seed: int
) -> CompiledModel:
    """Write the weights. `decoys` bounds the number of heads with random weights (None: every head without a line)."""
    model_family, layout = family(architecture, HEAD_DIM), lay_out(wiring.spaces, HEAD_DIM)
    random = torch.Generator().manual_seed(seed)
    model, seats = _seat_lines(wiring, model_family, layout, tokenizer, seed)
    config = model.config
    occupied = {(place.line.layer, place.head) for place in seats}
    ballast = (
        tuple(_ballast_seat(layer, occupied, config, seed) for layer in range(wiring.layers))
        if model_family.output_norms
        else ()
    )
    layer_heads = product(range(wiring.layers), range(config.num_attention_heads))
    empty = [layer_head for layer_head in layer_heads if layer_head not in {*occupied, *ballast}]
    decoy_heads = tuple(empty if decoys is None else empty[:: max(1, len(empty) // max(1, decoys))][:decoys])
    table = embedding(tokenizer, layout.spaces, layout.hidden, softness.jitter, random)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(table / model_family.embedding_scale(layout.hidden))
        model.model.norm.weight.copy_(_final_norm(model_family, layout))
        for number, layer in enumerate(model.model.layers):
            projections = zeros(layout, config.num_attention_heads, config.num_key_value_heads)
            rotary_frequencies = frequencies(model, number)
            scale = WeightScale(rotary_frequencies, GATE / gap(rotary_frequencies), model_family.scaling, softness)
            layer_seats = [place for place in seats if place.line.layer == number]
            for place in layer_seats:
                write_line(place, projections, layout, scale)
            _write_decoys(number, layer_seats, decoy_heads, ballast, projections, layout, random)
            _load_attention(layer, projections, model_family, layout)
            _load_mlp(layer, model_family, layout, random)
    return CompiledModel(model, layout, tuple(seats), decoy_heads, ballast)


def _seat_lines(
    wiring: Wiring, model_family: ArchitectureTraits, layout: Layout, tokenizer: Any, seed: int
) -> tuple[Any, list[Seat]]:
    """The smallest model with a head for every line and a free head in each layer."""
    specials = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    problem: WiringError | None = None
    for heads, kv_heads in SIZES:
        if layout.hidden % heads:  # some families refuse it, although head_dim is set separately
            continue
        shape = WiringSizes(
            len(tokenizer), layout.hidden, wiring.layers, heads, kv_heads, HEAD_DIM, INTERMEDIATE, specials
        )
        model = empty_model(model_family, shape)
        try:
            seats = []
            for layer in range(wiring.layers):
                lines = wiring.at_layer(layer)
                if len(lines) >= heads:
                    raise WiringError(f"layer {layer} has {len(lines)} lines and {heads} heads; one must stay free")
                check_distances(frequencies(model, layer), layer)
                seats += seat(lines, layout, frequencies(model, layer), heads, kv_heads, seed + layer)
            return model, seats
        except WiringError as error:
            problem = error
    raise WiringError(f"no model of up to {SIZES[-1][0]} heads holds this wiring: {problem}")


def _ballast_seat(layer: int, occupied: set[tuple[int, int]], config: Any, seed: int) -> tuple[int, int]:
    """A free head, the last one in an order that depends on the seed."""
    heads = [head for head in range(config.num_attention_heads) if (layer, head) not in occupied]
    return layer, heads[(seed + layer) % len(heads)]


def _write_decoys(
    number: int,
    seats: list[Seat],
    decoys: tuple[tuple[int, int], ...],
    ballast: tuple[tuple[int, int], ...],
    projections: Projections,
    layout: Layout,
    random: torch.Generator,
) -> None:
    """The decoys of a layer and, where there is one, its ballast head."""
    used = {place.head // projections.group for place in seats}
    for _, head in (layer_head for layer_head in decoys if layer_head[0] == number):
        write_decoy(head, head // projections.group not in used, projections, layout, random)
    for _, head in (layer_head for layer_head in ballast if layer_head[0] == number):
        value = layout.head_dim - 1
        projections.v[head // projections.group, value] = constant(layout)
        projections.o[head, layout.spaces[BALLAST], value] = BALLAST_SIZE


def _load_attention(layer: Any, projections: Projections, model_family: ArchitectureTraits, layout: Layout) -> None:
    attention = layer.self_attn
    if model_family.query_key_norms:
        for projection, norm in ((projections.q, attention.q_norm), (projections.k, attention.k_norm)):
            projection[:, PADDING_DIMENSION] = PADDING * constant(layout)
            norm.weight.fill_(PADDING * layout.head_dim**-0.5 - model_family.norm_offset)
            norm.weight[PADDING_DIMENSION] = -model_family.norm_offset
    attention.q_proj.weight.copy_(projections.q.reshape(-1, layout.hidden))
    attention.k_proj.weight.copy_(projections.k.reshape(-1, layout.hidden))
    attention.v_proj.weight.copy_(projections.v.reshape(-1, layout.hidden))
    attention.o_proj.weight.copy_(projections.o.permute(1, 0, 2).reshape(layout.hidden, -1))
    if model_family.output_norms:
        layer.post_attention_layernorm.weight.fill_(BALLAST_SIZE * layout.hidden**-0.5 - model_family.norm_offset)
        layer.post_attention_layernorm.weight[layout.spaces[BALLAST]] = -model_family.norm_offset


def _load_mlp(layer: Any, model_family: ArchitectureTraits, layout: Layout, random: torch.Generator) -> None:
    """Write an MLP that reads everything and adds noise, too small to change the norm."""
    noise, mlp = layout.spaces[NOISE], layer.mlp
    for projection in (mlp.gate_proj, mlp.up_proj):
        projection.weight.copy_(torch.randn(projection.weight.shape, generator=random) / layout.hidden**0.5)
    down = torch.zeros(mlp.down_proj.weight.shape)  # (hidden, intermediate)
    down[noise] = MLP_SIZE * torch.randn(down[noise].shape, generator=random)
    mlp.down_proj.weight.copy_(down)
    if model_family.output_norms:
        layer.post_feedforward_layernorm.weight.fill_(-model_family.norm_offset)
        layer.post_feedforward_layernorm.weight[noise] = MLP_SIZE - model_family.norm_offset


def _final_norm(model_family: ArchitectureTraits, layout: Layout) -> Tensor:
    """The final norm's weight: zero except for objects, where a unit of an object's direction is one logit."""
    weight = torch.full((layout.hidden,), -model_family.norm_offset)  # (hidden)
    weight[layout.spaces["object"]] = (
        CONSTANT * layout.hidden**-0.5 * model_family.embedding_scale(layout.hidden) - model_family.norm_offset
    )
    return weight
