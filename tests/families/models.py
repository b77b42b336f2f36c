"""Tiny random models of all families, on which a wrong surgeon cannot be right by luck.

KV heads are shared, heads x head_dim is not the hidden size, head sizes are odd where rotation allows it and differ
from layer to layer where a family can, windows and chunks are shorter than a prompt, soft caps bite, norm weights are
far from their defaults, and biases, sinks, gates, kernels and scalars are as large as what they are added to or
multiplied with.

`tiny` makes one model of a family with large weights, for tests of anything that runs on a model; `RandomModel` makes
several at stated scales, for the comparison with plain hooks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rebinding.surgery import Anatomy
from rebinding.surgery.anatomy import LayerParts
from tests.everyday import sampled

UsualFamily: TypeAlias = Literal["llama", "mistral", "gemma2", "gemma3", "gemma3_multimodal", "qwen3"]
"""Families whose layers are alike: three projections, one width of heads, one MLP."""
UnusualFamily: TypeAlias = Literal[
    "gpt_neox",
    "gpt_neox_sequential",
    "opt",
    "stablelm",
    "stablelm_parallel",
    "nemotron",
    "gpt_oss",
    "llama4_text",
    "qwen3_next",
    "qwen3_5_text",
    "gemma4_text",
    "gemma4_text_equal",
    "gemma4_text_experts",
    "gemma3n_text",
    "gpt2",
    "phi",
]
Family: TypeAlias = UsualFamily | UnusualFamily
USUAL: tuple[UsualFamily, ...] = get_args(UsualFamily)
UNUSUAL: tuple[UnusualFamily, ...] = get_args(UnusualFamily)
FAMILIES: tuple[Family, ...] = (*USUAL, *UNUSUAL)
VARIANT_OF: dict[Family, str] = {
    "gemma3": "gemma3_text",
    "gemma3_multimodal": "gemma3",
    "gpt_neox_sequential": "gpt_neox",
    "stablelm_parallel": "stablelm",
    "gemma4_text_equal": "gemma4_text",
    "gemma4_text_experts": "gemma4_text",
}
"""The library's name of a family, where ours is another."""
SCALES = (0.6, 1.0, 1.6)
"""Gains of the random matrices: 1 keeps the size of what passes through."""
SCALES_WITH_STATE = (0.6, 0.75, 1.0)
"""Of families whose layers carry a state: at 1.25 rounding moves some logits by a hundredth."""
WITH_STATE: frozenset[Family] = frozenset({"qwen3_next", "qwen3_5_text"})

VOCABULARY = 101
SPECIAL = range(95, VOCABULARY)
"""Token ids that stand for images or beginnings; `tokens` never draws them, nor the first three."""
LENGTH = 14
COMMON = 4
"""Tokens that all prompts begin with."""
PROMPTS = 3
WINDOW = 5
N_HEADS = 6

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": N_HEADS,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 64,
    "attention_bias": True,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ALTERNATING = ["sliding_attention", "full_attention"] * 2
SHARING = ["sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention"]
LINEAR = ["linear_attention", "full_attention", "linear_attention", "linear_attention", "full_attention"]


def _rope(theta: float = 30.0, **settings: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta} | settings


WITHOUT_GROUPS = {"head_dim": None, "num_key_value_heads": None}
"""Families whose heads have keys and values of their own, and share the hidden size among them."""
QWEN: dict[str, Any] = {
    "num_hidden_layers": 5,
    "layer_types": LINEAR,
    "linear_conv_kernel_dim": 3,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 5,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "rope_parameters": _rope(partial_rotary_factor=0.4),
}
GEMMA: dict[str, Any] = {
    "num_hidden_layers": 6,
    "sliding_window": WINDOW,
    "hidden_size_per_layer_input": 7,
    "vocab_size_per_layer_input": VOCABULARY,
    "final_logit_softcapping": 3.0,
    "layer_types": [*SHARING, "full_attention"],
}
GEMMA4: dict[str, Any] = GEMMA | {
    "global_head_dim": 14,
    "rope_parameters": {
        "sliding_attention": _rope(),
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.4, "rope_theta": 500.0},
    },
}
EXPERTS: dict[str, Any] = {"num_experts": 3, "moe_intermediate_size": 16}
NEOX: dict[str, Any] = WITHOUT_GROUPS | {"hidden_size": 30, "rope_parameters": _rope(partial_rotary_factor=0.4)}
STABLELM: dict[str, Any] = {
    "hidden_size": 42,
    "head_dim": None,
    "qk_layernorm": True,
    "use_qkv_bias": True,
    "rope_parameters": _rope(partial_rotary_factor=0.6),
}

LINEAR_ROPE: dict[str, Any] = {
    "sliding_attention": _rope(),
    "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0},
}
GEMMA3: dict[str, Any] = {
    "attention_bias": False,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
    "query_pre_attn_scalar": 7,
    "rope_parameters": LINEAR_ROPE,
}
GEMMA2: dict[str, Any] = GEMMA3 | {
    "layer_types": ALTERNATING,
    "attn_logit_softcapping": 1.5,
    "final_logit_softcapping": 3.0,
    "rope_parameters": None,
}
VISION: dict[str, Any] = {
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
}
SPECIAL_TOKENS = dict(zip(("boi_token_index", "eoi_token_index", "image_token_index"), SPECIAL, strict=False))

SETTINGS: dict[Family, dict[str, Any]] = {
    "llama": {"mlp_bias": True},
    "mistral": {"sliding_window": 4},
    "gemma2": GEMMA2,
    "gemma3": GEMMA3 | {"final_logit_softcapping": 3.0},
    "gemma3_multimodal": GEMMA3,
    "qwen3": {"use_sliding_window": True, "sliding_window": 6, "layer_types": ALTERNATING},
    "gpt_neox": NEOX | {"use_parallel_residual": True},
    "gpt_neox_sequential": NEOX | {"use_parallel_residual": False},
    "opt": WITHOUT_GROUPS | {"hidden_size": 30, "ffn_dim": 40, "word_embed_proj_dim": 30, "do_layer_norm_before": True},
    "stablelm": STABLELM | {"use_parallel_residual": False},
    "stablelm_parallel": STABLELM | {"use_parallel_residual": True},
    "nemotron": {"head_dim": 9, "mlp_bias": True, "rope_parameters": _rope(partial_rotary_factor=0.5)},
    "gpt_oss": {
        "sliding_window": WINDOW,
        "layer_types": ALTERNATING,
        "num_local_experts": 3,
        "num_experts_per_tok": 2,
        "swiglu_limit": 1.5,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 30.0,
            "factor": 4.0,
            "beta_fast": 4.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 16,
        },
    },
    "llama4_text": {
        "attention_chunk_size": WINDOW,
        "no_rope_layers": [1, 0, 1, 0],
        "moe_layers": [1, 2],
        "num_local_experts": 3,
        "num_experts_per_tok": 1,
        "intermediate_size": 32,
        "intermediate_size_mlp": 40,
        "use_qk_norm": True,
        "attn_temperature_tuning": True,
        "floor_scale": 3,
        "attn_scale": 0.7,
        "rope_parameters": _rope(),
    },
    "qwen3_next": QWEN
    | EXPERTS
    | {"num_experts_per_tok": 2, "shared_expert_intermediate_size": 16, "mlp_only_layers": [1]},
    "qwen3_5_text": QWEN,
    "gemma4_text": GEMMA4 | {"num_kv_shared_layers": 2, "use_double_wide_mlp": True},
    "gemma4_text_equal": GEMMA4
    | {"attention_k_eq_v": True, "num_global_key_value_heads": 3, "hidden_size_per_layer_input": 0},
    "gemma4_text_experts": GEMMA4
    | EXPERTS
    | {"enable_moe_block": True, "top_k_experts": 2, "hidden_size_per_layer_input": 0},
    "gemma3n_text": GEMMA
    | {
        "altup_num_inputs": 3,
        "laurel_rank": 6,
        "num_kv_shared_layers": 2,
        "activation_sparsity_pattern": [0.6, 0.3, 0.0, 0.0, 0.6, 0.0],
        "rope_parameters": {"sliding_attention": _rope(), "full_attention": _rope(500.0)},
    },
    "gpt2": WITHOUT_GROUPS
    | {"hidden_size": 30, "n_inner": 40, "n_positions": 64, "scale_attn_by_inverse_layer_idx": True},
    "phi": {
        "hidden_size": 42,
        "head_dim": 7,
        "qk_layernorm": True,
        "rope_parameters": _rope(partial_rotary_factor=0.6),
    },
}


@dataclass(frozen=True)
class RandomModel:
    """A family, the gain of the matrices, and the seed of all weights."""

    family: Family
    scale: float = 1.0
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.family}-{self.scale}-{self.seed}"

    def build(self, **changes: Any) -> PreTrainedModel:
        """A new model in float32, on the library's eager attention; `changes` replace settings that it has."""
        known = SIZES | SETTINGS[self.family]
        changes = {name: value for name, value in changes.items() if known.get(name) is not None}
        torch.manual_seed(self.seed)
        model = configure(self.family, **changes)
        model.set_experts_implementation("eager")  # the grouped products of the default take no float64
        draw_weights(model, self.scale, self.seed, has_scalars=self.family != "gemma4_text_equal")
        return model

    @property
    def prompts(self) -> Tensor:
        """Random prompts of one length and one beginning, free of special ids: (prompt, token)."""
        prompts = tokens(self.family, PROMPTS, LENGTH, seed=self.seed)
        prompts[:, :COMMON] = prompts[0, :COMMON]
        return prompts


def configure(family: Family, **changes: Any) -> PreTrainedModel:
    """A model of a family on the library's eager attention, with its default weights; `changes` go to its config."""
    settings = {name: value for name, value in (SIZES | SETTINGS[family] | changes).items() if value is not None}
    if family == "gemma3_multimodal":
        settings = {"text_config": settings, "vision_config": VISION, "mm_tokens_per_image": 1, **SPECIAL_TOKENS}
    config = AutoConfig.for_model(VARIANT_OF.get(family, family), **settings)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    return model


def tokens(family: Family, n: int = 3, length: int = 13, *, seed: int = 0) -> Tensor:
    """Random prompts of one length, free of special ids: (prompt, token)."""
    dice = torch.Generator().manual_seed(sum(map(ord, family)) + seed)
    return torch.randint(3, SPECIAL[0], (n, length), generator=dice)


EVERYDAY = [RandomModel(family) for family in FAMILIES]
ALL_MODELS = [
    RandomModel(family, scale, seed=int(scale != 1.0))
    for family in FAMILIES
    for scale in (SCALES_WITH_STATE if family in WITH_STATE else SCALES)
]
MODELS = sampled(ALL_MODELS, *EVERYDAY)
DIFFERENT = [RandomModel(family) for family in ("gemma2", "gemma3n_text", "qwen3_next", "gemma4_text", "gpt_oss")]
"""Soft caps and post-norms; parallel residual streams; layers with a state, and gates; reused keys and heads of two
widths; sinks and experts. What a run does with these it does with all others."""


@torch.no_grad()
def draw_weights(model: PreTrainedModel, scale: float, seed: int, *, has_scalars: bool = True) -> None:
    """Draw every parameter and every saved scalar anew; `scale` is the gain of matrices.

    Without scalars, the layers of Gemma 4 add up as those of Gemma 3 do.
    """
    dice = torch.Generator().manual_seed(seed)
    scalars = [(name, value) for name, value in model.named_buffers() if name in model.state_dict()]
    for name, weight in (*model.named_parameters(), *(scalars if has_scalars else ())):
        noise = torch.randn(weight.shape, generator=dice)
        if "A_log" in name:
            weight.copy_(0.5 * noise - 1.0)  # a state loses about a third from token to token
        elif weight.ndim == 1 or "bias" in name:
            is_constant = bool((weight == weight.flatten()[0]).all())
            default = float(weight.flatten()[0]) if is_constant else 0.0  # a norm's weight is 1, or 0 where it adds one
            weight.copy_(default + 0.4 * noise)
        elif "embed" in name or "wte" in name or "wpe" in name:
            weight.copy_(0.5 * noise)
        else:
            fan = (weight.shape[-1] * weight.shape[-2]) ** 0.5  # of both directions: some families transpose
            weight.copy_(noise * scale * fan**-0.5)
    model.eval().requires_grad_(False)


@cache
def reference_model(model: RandomModel) -> PreTrainedModel:
    """The model that plain hooks run on; surgeons change the attention function of theirs."""
    return model.build()


def tiny(family: Family, *, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """A new random model of a family in float32, on the library's eager attention; `overrides` go to its config."""
    model = configure(family, **overrides)
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


def changed(anatomy: Anatomy, **fields: Any) -> Anatomy:
    """An anatomy with other fields; those of layers change in every layer."""
    of_layers = {name: value for name, value in fields.items() if name in LayerParts.__dataclass_fields__}
    parts = tuple(replace(part, **of_layers) for part in anatomy.parts)
    return replace(anatomy, parts=parts, **{name: fields[name] for name in fields.keys() - of_layers.keys()})
