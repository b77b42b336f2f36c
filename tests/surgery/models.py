"""Tiny random models on which a wrong surgeon cannot be right by luck.

KV heads are shared by three query heads, heads x head_dim is not the hidden size, sliding windows are shorter than a
prompt, soft caps bite, weights are several times larger than at initialisation, norm weights are far from one, and
families that may have biases have them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    SiglipVisionConfig,
)

from rebinding.surgery import Anatomy
from rebinding.surgery.anatomy import LayerParts

Family: TypeAlias = Literal["llama", "mistral", "gemma2", "gemma3", "gemma3_multimodal", "qwen3"]
FAMILIES: tuple[Family, ...] = get_args(Family)

VOCABULARY = 101
SPECIAL = range(95, VOCABULARY)
"""Token ids that stand for images or beginnings; `tokens` never draws them, nor the first three."""

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 64,
    "attn_implementation": "eager",
}
SLIDING = ["sliding_attention", "full_attention"] * 2
THREE_SLIDING = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
TWO_SPEEDS: dict[str, Any] = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
    "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0},
}
GEMMA3: dict[str, Any] = {
    "sliding_window": 5,
    "layer_types": THREE_SLIDING,
    "query_pre_attn_scalar": 7,
    "rope_parameters": TWO_SPEEDS,
}


def _multimodal(**settings: Any) -> Gemma3Config:
    attention = settings.pop("attn_implementation")
    vision = SiglipVisionConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4
    )
    return Gemma3Config(  # type: ignore[call-arg]  # attn_implementation is not in its signature
        text_config=Gemma3TextConfig(**settings),
        vision_config=vision,
        mm_tokens_per_image=1,
        boi_token_index=SPECIAL[0],
        eoi_token_index=SPECIAL[1],
        image_token_index=SPECIAL[2],
        attn_implementation=attention,
    )


RECIPES: dict[Family, tuple[type[PreTrainedModel], Callable[..., PreTrainedConfig], dict[str, Any]]] = {
    "llama": (LlamaForCausalLM, LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "mistral": (MistralForCausalLM, MistralConfig, {"sliding_window": 4}),
    "gemma2": (
        Gemma2ForCausalLM,
        Gemma2Config,
        {
            "sliding_window": 5,
            "layer_types": SLIDING,
            "query_pre_attn_scalar": 7,
            "attn_logit_softcapping": 1.5,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig, {**GEMMA3, "final_logit_softcapping": 3.0}),
    "gemma3_multimodal": (Gemma3ForConditionalGeneration, _multimodal, GEMMA3),
    "qwen3": (
        Qwen3ForCausalLM,
        Qwen3Config,
        {"use_sliding_window": True, "sliding_window": 6, "layer_types": SLIDING, "attention_bias": True},
    ),
}


def tiny(family: Family, *, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """A new random model of a family in float32, on the library's eager attention; `overrides` go to its config."""
    kind, configure, settings = RECIPES[family]
    model = kind(configure(**{**SIZES, **settings, **overrides}))
    make_hostile(model, seed)
    return model


@torch.no_grad()
def make_hostile(model: PreTrainedModel, seed: int) -> None:
    """Draw every weight anew: matrices that amplify, norms and biases that matter."""
    dice = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=dice)
        if "norm" in name and weight.ndim == 1:
            default = 0.0 if "Gemma" in type(model).__name__ else 1.0  # Gemma's norms add one to their weight
            weight.copy_(default + 0.4 * noise)
        elif weight.ndim == 1:
            weight.copy_(0.5 * noise)
        else:
            gain = 1.0 if "embed" in name else 1.6
            weight.copy_(noise * gain * weight.flatten(1).shape[-1] ** -0.5)
    model.eval().requires_grad_(False)


def tokens(family: Family, n: int = 3, length: int = 13) -> Tensor:
    """Random prompts of one length, free of special ids: (prompt, token)."""
    dice = torch.Generator().manual_seed(sum(map(ord, family)))
    return torch.randint(3, SPECIAL[0], (n, length), generator=dice)


def changed(anatomy: Anatomy, **fields: Any) -> Anatomy:
    """An anatomy with other fields; those of layers change in every layer."""
    of_layers = {name: value for name, value in fields.items() if name in LayerParts.__dataclass_fields__}
    parts = tuple(replace(part, **of_layers) for part in anatomy.parts)
    return replace(anatomy, parts=parts, **{name: fields[name] for name in fields.keys() - of_layers.keys()})
