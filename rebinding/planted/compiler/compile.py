"""A wiring as a model of one of the three families."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from rebinding.planted.compiler.architectures import Family, Shape, empty_model, family, frequencies
from rebinding.planted.compiler.layout import BALLAST, NOISE, Layout, lay_out
from rebinding.planted.compiler.linter import check_distances
from rebinding.planted.compiler.packing import Seat, seat
from rebinding.planted.compiler.weights import Projections, Scale, constant, write_decoy, write_line, zeros
from rebinding.planted.language.features import CONSTANT, embedding
from rebinding.planted.language.rope import gap
from rebinding.planted.language.wiring import GATE, Softness, Wiring, WiringError

HEAD_DIM = 64
INTERMEDIATE = 48
SIZES = ((8, 4), (12, 6), (16, 8))
"""Numbers of heads and KV heads to try, smallest first."""
BALLAST_SIZE = 1000.0
"""The constant of the ballast head in the Gemmas, which makes the norm of the attention output equal at all tokens."""
PADDING, PADDED = 1e5, 5
"""The constant that pads q and k in Gemma 3, and its dimension (of an otherwise unused pair)."""
MLP_SIZE = 0.02


@dataclass(frozen=True)
class Compiled:
    """The model, and the heads of lines, decoys and ballast."""

    model: Any
    layout: Layout
    seats: tuple[Seat, ...]
    decoys: tuple[tuple[int, int], ...]
    ballast: tuple[tuple[int, int], ...]


def compile_wiring(
    wiring: Wiring, architecture: str, tokenizer: Any, *, softness: Softness, decoys: int | None, seed: int
) -> Compiled:
    """Write the weights. `decoys` bounds the number of heads with random weights (None: every head without a line)."""
    this, layout = family(architecture, HEAD_DIM), lay_out(wiring.spaces, HEAD_DIM)
    random = torch.Generator().manual_seed(seed)
    model, seats = _seat_lines(wiring, this, layout, tokenizer, seed)
    config = model.config
    occupied = {(place.line.layer, place.head) for place in seats}
    ballast = (
        tuple(_ballast_seat(layer, occupied, config, seed) for layer in range(wiring.layers))
        if this.output_norms
        else ()
    )
    empty = [
        at for at in product(range(wiring.layers), range(config.num_attention_heads)) if at not in {*occupied, *ballast}
    ]
    decoy_heads = tuple(empty if decoys is None else empty[:: max(1, len(empty) // max(1, decoys))][:decoys])
    table = embedding(tokenizer, layout.spaces, layout.hidden, softness.jitter, random)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(table / this.embedding_scale(layout.hidden))
        model.model.norm.weight.copy_(_final_norm(this, layout))
        for number, layer in enumerate(model.model.layers):
            to = zeros(layout, config.num_attention_heads, config.num_key_value_heads)
            turning = frequencies(model, number)
            scale = Scale(turning, GATE / gap(turning), this.scaling, softness)
            layer_seats = [place for place in seats if place.line.layer == number]
            for place in layer_seats:
                write_line(place, to, layout, scale)
            _write_decoys(number, layer_seats, decoy_heads, ballast, to, layout, random)
            _load_attention(layer, to, this, layout)
            _load_mlp(layer, this, layout, random)
    return Compiled(model, layout, tuple(seats), decoy_heads, ballast)


def _seat_lines(wiring: Wiring, this: Family, layout: Layout, tokenizer: Any, seed: int) -> tuple[Any, list[Seat]]:
    """The smallest model with a head for every line and a free head in each layer."""
    specials = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    problem: WiringError | None = None
    for heads, kv_heads in SIZES:
        if layout.hidden % heads:  # some families refuse it, although head_dim is set separately
            continue
        shape = Shape(len(tokenizer), layout.hidden, wiring.layers, heads, kv_heads, HEAD_DIM, INTERMEDIATE, specials)
        model = empty_model(this, shape)
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
    to: Projections,
    layout: Layout,
    random: torch.Generator,
) -> None:
    """The decoys of a layer and, where there is one, its ballast head."""
    used = {place.head // to.group for place in seats}
    for _, head in (at for at in decoys if at[0] == number):
        write_decoy(head, head // to.group not in used, to, layout, random)
    for _, head in (at for at in ballast if at[0] == number):
        value = layout.head_dim - 1
        to.v[head // to.group, value] = constant(layout)
        to.o[head, layout.spaces[BALLAST], value] = BALLAST_SIZE


def _load_attention(layer: Any, to: Projections, this: Family, layout: Layout) -> None:
    attention = layer.self_attn
    if this.query_key_norms:
        for projection, norm in ((to.q, attention.q_norm), (to.k, attention.k_norm)):
            projection[:, PADDED] = PADDING * constant(layout)
            norm.weight.fill_(PADDING * layout.head_dim**-0.5 - this.norm_offset)
            norm.weight[PADDED] = -this.norm_offset
    attention.q_proj.weight.copy_(to.q.reshape(-1, layout.hidden))
    attention.k_proj.weight.copy_(to.k.reshape(-1, layout.hidden))
    attention.v_proj.weight.copy_(to.v.reshape(-1, layout.hidden))
    attention.o_proj.weight.copy_(to.o.permute(1, 0, 2).reshape(layout.hidden, -1))
    if this.output_norms:
        layer.post_attention_layernorm.weight.fill_(BALLAST_SIZE * layout.hidden**-0.5 - this.norm_offset)
        layer.post_attention_layernorm.weight[layout.spaces[BALLAST]] = -this.norm_offset


def _load_mlp(layer: Any, this: Family, layout: Layout, random: torch.Generator) -> None:
    """Write an MLP that reads everything and adds noise, too small to change the norm."""
    noise, mlp = layout.spaces[NOISE], layer.mlp
    for projection in (mlp.gate_proj, mlp.up_proj):
        projection.weight.copy_(torch.randn(projection.weight.shape, generator=random) / layout.hidden**0.5)
    down = torch.zeros(mlp.down_proj.weight.shape)  # (hidden, intermediate)
    down[noise] = MLP_SIZE * torch.randn(down[noise].shape, generator=random)
    mlp.down_proj.weight.copy_(down)
    if this.output_norms:
        layer.post_feedforward_layernorm.weight.fill_(-this.norm_offset)
        layer.post_feedforward_layernorm.weight[noise] = MLP_SIZE - this.norm_offset


def _final_norm(this: Family, layout: Layout) -> Tensor:
    """The final norm's weight: zero except for objects, where a unit of an object's direction is one logit."""
    weight = torch.full((layout.hidden,), -this.norm_offset)  # (hidden)
    weight[layout.spaces["object"]] = (
        CONSTANT * layout.hidden**-0.5 * this.embedding_scale(layout.hidden) - this.norm_offset
    )
    return weight
