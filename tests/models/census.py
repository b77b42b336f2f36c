"""Every causal language model of the installed transformers, small and random."""

from __future__ import annotations

from typing import Any, Final

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.families.models import make_hostile
from tests.models.folders import ROWS

DEFAULT: Final = object()
"""In place of a size: the type's own default."""

SIZES: dict[str, Any] = {
    **dict.fromkeys(["vocab_size", "vocab_size_per_layer_input"], ROWS),
    **dict.fromkeys(["hidden_size", "n_embd", "d_model", "emb_dim"], 24),
    **dict.fromkeys(["num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"], 4),
    **dict.fromkeys(["num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"], 6),
    **dict.fromkeys(["intermediate_size", "ffn_dim", "decoder_ffn_dim"], 40),
    **dict.fromkeys(["max_position_embeddings", "n_positions"], 128),
    **dict.fromkeys(["moe_intermediate_size", "expert_ffn_hidden_size", "shared_expert_intermediate_size"], 16),
    **dict.fromkeys(["num_local_experts", "num_experts", "n_routed_experts"], 2),
    **dict.fromkeys(["num_experts_per_tok", "num_experts_per_token", "topk_group", "moe_topk", "top_k_experts"], 1),
    **dict.fromkeys(["n_group", "num_expert_group"], 1),
    **dict.fromkeys(["sliding_window", "window_size", "attention_chunk_size", "floor_scale"], 7),
    **dict.fromkeys(["linear_num_key_heads", "index_n_heads"], 2),
    **dict.fromkeys(["linear_num_value_heads", "linear_num_heads"], 4),
    **dict.fromkeys(["linear_key_head_dim", "linear_value_head_dim", "linear_head_dim", "mamba_d_state"], 8),
    "num_key_value_heads": 2,
    "head_dim": 10,
    "hidden_size_per_layer_input": 8,
    **dict.fromkeys(["attention_bias", "mlp_bias", "qk_layernorm", "use_qk_norm", "use_sliding_window"], True),
    **dict.fromkeys(["residual_multiplier", "logits_scaling", "embedding_multiplier"], 0.6),
    "query_pre_attn_scalar": 7,
    "attention_multiplier": 0.3,  # trained ones divide scores by the root of head_dim or more; Granite's default is 1
    "max_window_layers": 2,
    "encoder_layers": 1,
    "encoder_attention_heads": 6,
    "encoder_ffn_dim": 40,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Sizes by the name of the setting: windows shorter than a prompt, KV heads that query heads share, heads x head_dim
that differs from the hidden size, biases and factors where there may be some."""

LATENT: dict[str, Any] = {
    "num_key_value_heads": 6,
    "head_dim": DEFAULT,
    "kv_lora_rank": 12,
    "q_lora_rank": 14,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
}
"""Types with latent attention."""
INDEXED = LATENT | {"index_topk": 6, "index_n_heads": 2, "index_head_dim": 8}
"""Types with latent attention to the keys that an index selects."""
MAMBA2: dict[str, Any] = {"mamba_n_heads": 6, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}
"""Types with layers of Mamba 2; two times the hidden size is heads x head_dim."""
SLIDING = ["sliding_attention", "full_attention"] * 2
LINEAR = ["linear_attention", "full_attention"] * 2
WINDOWS: dict[str, Any] = {"layer_types": SLIDING}
STATES: dict[str, Any] = {"layer_types": LINEAR}
CONVOLUTIONS: dict[str, Any] = {"layer_types": ["conv", "full_attention"] * 2}
SHARED_KEYS = {"num_kv_shared_layers": 2, "layer_types": SLIDING}
GEMMA3N: dict[str, Any] = SHARED_KEYS | {"activation_sparsity_pattern": [0.5, 0.0, 0.5, 0.0], "laurel_rank": 4}
GEMMA4: dict[str, Any] = SHARED_KEYS | {"global_head_dim": 14}
CAPS = {"attn_logit_softcapping": 1.5, "final_logit_softcapping": 3.0}
ROPE = {"rope_type": "default", "rope_theta": 100.0}
DEEPSEEK_V4: dict[str, Any] = {
    **{"num_key_value_heads": 1, "partial_rotary_factor": 0.4, "q_lora_rank": 14, "o_groups": 2, "o_lora_rank": 8},
    **{"hc_mult": 2, "index_n_heads": 2, "index_head_dim": 8, "index_topk": 4},
}
DOTS3: dict[str, Any] = INDEXED | {
    "swa_num_attention_heads": 6,
    "swa_num_key_value_heads": 6,
    "layer_types": ["indexed_attention"] * 4,
}
QWEN4: dict[str, Any] = {
    **{"layer_types": LINEAR, "hc_count": 2, "hc_lowrank": 4, "indexer_n_heads": 2, "indexer_kv_heads": 1},
    **{"head_dim": 8, "indexer_head_dim": 8, "indexer_budget": 6, "indexer_compress_ratio": 2},
}
MINIMAX_M3: dict[str, Any] = {
    **{"layer_types": ["full_attention", "minimax_m3_sparse"] * 2, "index_n_heads": 2, "index_head_dim": 8},
    **{"index_block_size": 4, "index_topk_blocks": 2},
}
REFORMER: dict[str, Any] = {
    **{"is_decoder": True, "attention_head_size": 4, "feed_forward_size": 40, "axial_pos_shape": (8, 16)},
    **{"axial_pos_embds_dim": (8, 16), "local_attn_chunk_length": 8, "lsh_attn_chunk_length": 8},
}
BLT_PART: dict[str, Any] = {"head_dim": 4, "hidden_size_global": 24}
BLT: dict[str, Any] = {
    "encoder_hash_byte_group_vocab": 40,
    **dict.fromkeys(["patcher_config", "decoder_config", "encoder_config", "global_config"], BLT_PART),
}

OVERRIDES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(["axk1", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "youtu"], LATENT),
    **dict.fromkeys(["axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4"], INDEXED),
    **dict.fromkeys(["bailing_hybrid", "kimi_linear"], LATENT | {"layer_types": LINEAR}),
    "bamba": MAMBA2 | {"attn_layer_indices": [1, 3]},
    "granitemoehybrid": MAMBA2 | STATES,
    "falcon_h1": MAMBA2 | {"mamba_d_ssm": 48},
    **dict.fromkeys(["gemma2", "vaultgemma"], CAPS | WINDOWS),
    **dict.fromkeys(["gemma3_text", "gpt_oss", "kolibri1", "laguna", "mellum"], WINDOWS),
    "gemma3": {"text_config": WINDOWS},
    "moshi": {"sliding_window": DEFAULT},  # transformers never masks by it
    **dict.fromkeys(["qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"], STATES),
    **dict.fromkeys(["gemma4_text", "gemma4_unified_text"], GEMMA4),
    "gemma4": {"text_config": GEMMA4},
    "gemma4_unified": {"text_config": GEMMA4},
    "gemma3n_text": GEMMA3N,
    "gemma3n": {"text_config": GEMMA3N},
    "longcat_flash": LATENT | {"head_dim": 4, "ffn_hidden_size": 40, "zero_expert_num": 1, "moe_topk": 2},
    "deepseek_v4": DEEPSEEK_V4,
    "dots3_note_text": DOTS3,
    "dots3_note": {
        "text_config": DOTS3,
        "vision_config": {"mlp_layer_types": ["dense"] * 4, "adapter_in_dim": 24, "adapter_out_dim": 24},
        "audio_config": {"adapter_input_size": 24, "adapter_out_dim": 24},
    },
    "qwen4_exp_text": QWEN4,
    "qwen4_exp": {"text_config": QWEN4},
    **dict.fromkeys(["lfm2", "lfm2_moe"], CONVOLUTIONS),
    "helium": {"head_dim": 4},
    "gptj": {"rotary_dim": 2},
    "codegen": {"n_head": 4, "rotary_dim": 2},
    "cohere_compass_text": {"layer_types": SLIDING, "rope_parameters": dict.fromkeys(SLIDING, ROPE)},
    "dbrx": {
        "attn_config": {"rope_theta": 100.0, "kv_n_heads": 2, "clip_qkv": 8.0},
        "ffn_config": {"hidden_size": 24, "ffn_hidden_size": 40},
    },
    "mimo_v2_flash": {"v_head_dim": 6, "num_key_value_heads": 3},
    "mamba2": {"num_heads": 6, "head_dim": 8, "n_groups": 1, "state_size": 8, "chunk_size": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "xglm": {"attention_heads": 6},
    "xlm": {"causal": True},
    "xmod": {"default_language": "en_XX"},
    "roc_bert": {"pronunciation_embed_dim": 8, "shape_embed_dim": 8, "shape_vocab_size": 40},
    "prophetnet": {"num_decoder_layers": 4, "num_decoder_attention_heads": 6, "num_encoder_attention_heads": 6},
    "minimax_m3_vl_text": MINIMAX_M3,
    "reformer": REFORMER,
    "stablelm": {"partial_rotary_factor": 0.5},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "dots1": {"n_shared_experts": 1},
    "zamba": {"num_hidden_layers": 6, "attn_layer_period": 3, "attn_layer_offset": 1},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"] * 2, "n_mamba_heads": 6},
    "blt": BLT,
}


TYPES: tuple[str, ...] = tuple(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
LARGEST = 6_000_000
"""Parameters of a model that is still built."""
PROMPT = range(3, 19)
"""Tokens of a prompt that shows whether a model runs."""


class CannotBuild(Exception):
    """A type of which transformers makes no small model; the message holds the library's reason."""


def build(kind: str) -> PreTrainedModel:
    """A model of a type that answers a prompt, with hostile weights, on the library's eager attention."""
    try:
        model = _build(kind)
        make_hostile(model, seed=0)
        model(input_ids=torch.tensor([PROMPT]), use_cache=False)
    except CannotBuild:
        raise
    except Exception as error:  # configurations and models refuse sizes with errors of their own
        raise CannotBuild(f"{type(error).__name__}: {' '.join(str(error).split()):.200}") from error
    return model


def _build(kind: str) -> PreTrainedModel:
    config = small_config(kind)
    with torch.device("meta"):
        outline = AutoModelForCausalLM.from_config(config)
    count = sum(weight.numel() for weight in outline.parameters())
    if count > LARGEST:
        raise CannotBuild(f"it has {count:,} parameters at these sizes, more than {LARGEST:,}")
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    return model


def small_config(kind: str) -> PreTrainedConfig:
    """The configuration of a type with the sizes of the census, those of parts such as a text tower included."""
    sizes = _merge(_known_sizes(AutoConfig.for_model(kind)), OVERRIDES.get(kind, {}))
    config: PreTrainedConfig = AutoConfig.for_model(kind, **sizes)
    return config


def _known_sizes(config: PreTrainedConfig) -> dict[str, Any]:
    """The shared sizes that a configuration has, by name; one dictionary for each configuration inside it."""
    sizes: dict[str, Any] = {name: size for name, size in SIZES.items() if name in vars(config)}
    for name in type(config).sub_configs:
        if isinstance(part := getattr(config, name, None), PreTrainedConfig):
            sizes[name] = {"model_type": part.model_type, **_known_sizes(part)}
    return sizes


def _merge(sizes: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The sizes with the changes, those of parts too; `DEFAULT` removes a size."""
    merged = dict(sizes)
    for name, value in changes.items():
        merged[name] = _merge(merged.get(name, {}), value) if isinstance(value, dict) else value
    return {name: value for name, value in merged.items() if value is not DEFAULT}
