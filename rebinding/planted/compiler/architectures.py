"""The three model families, with their configs and differences.

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
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

Architecture: TypeAlias = Literal["llama", "gemma2", "gemma3"]
ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)
WINDOW = 512
"""Sliding window of the Gemmas; wider than any prompt, so that every layer sees the first token."""


@dataclass(frozen=True)
class Shape:
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
class Family:
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


def family(name: str, head_dim: int) -> Family:
    """The family of an architecture; Gemma's score scale is deliberately not its head size."""
    if name == "llama":
        return Family("llama", 0.0, False, False, False, head_dim)
    if name == "gemma2":
        return Family("gemma2", 1.0, True, True, False, 9 * head_dim // 4)
    if name == "gemma3":
        return Family("gemma3", 1.0, True, True, True, 3 * head_dim // 2)
    raise ValueError(f"there is no architecture {name!r}; the planted models come as {', '.join(ARCHITECTURES)}")


def empty_model(model_family: Family, shape: Shape) -> Any:
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
