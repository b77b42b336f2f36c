"""Every causal language model of the installed transformers, small and random."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.models.folders import ROWS

TYPES: tuple[str, ...] = tuple(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
LARGEST = 30_000_000
"""Parameters of a model that is still built."""

SIZES: dict[str, Any] = {
    **dict.fromkeys(["vocab_size", "vocab_size_per_layer_input"], ROWS),
    **dict.fromkeys(["hidden_size", "n_embd", "d_model"], 24),
    **dict.fromkeys(["num_hidden_layers", "n_layer", "n_layers", "decoder_layers"], 4),
    **dict.fromkeys(["num_attention_heads", "n_head", "n_heads", "decoder_attention_heads"], 6),
    **dict.fromkeys(["intermediate_size", "ffn_dim", "decoder_ffn_dim"], 40),
    **dict.fromkeys(["max_position_embeddings", "n_positions"], 128),
    **dict.fromkeys(["moe_intermediate_size", "expert_ffn_hidden_size"], 16),
    **dict.fromkeys(["num_local_experts", "num_experts", "n_routed_experts"], 2),
    "num_experts_per_tok": 1,
    "hidden_size_per_layer_input": 8,
    "num_key_value_heads": 2,
    "encoder_layers": 1,
    "encoder_attention_heads": 6,
    "encoder_ffn_dim": 40,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
HEADS: tuple[dict[str, int], ...] = ({"head_dim": 10}, {"head_dim": 4}, {})
"""Sizes of a head that are tried in turn: not every family can have heads that are not a share of the hidden size."""


def build(kind: str) -> PreTrainedModel | None:
    """A model of a family that answers a prompt; one that does not, if none does; None, if none can be built."""
    last: PreTrainedModel | None = None
    for heads in HEADS:
        try:
            model = _build(kind, SIZES | heads)
        except Exception:  # configurations refuse sizes with errors of their own
            continue
        last = model
        if model is not None and _runs(model):
            break
    return last


def _build(kind: str, sizes: dict[str, Any]) -> PreTrainedModel | None:
    defaults = vars(AutoConfig.for_model(kind))
    config = AutoConfig.for_model(kind, **{name: size for name, size in sizes.items() if name in defaults})
    with torch.device("meta"):
        outline = AutoModelForCausalLM.from_config(config)
    if sum(weight.numel() for weight in outline.parameters()) > LARGEST:
        return None
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.eval().requires_grad_(False)
    return model


def _runs(model: PreTrainedModel) -> bool:
    try:
        model(input_ids=torch.arange(3, 15)[None], use_cache=False)
    except Exception:  # whatever it is, it is the library's own
        return False
    return True
