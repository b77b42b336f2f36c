"""The random models are hostile: each weight, window, chunk, factor and cap moves the logits by more than rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rebinding.models import check
from rebinding.surgery import derive
from tests.close import MIN_CHANGE_SHARE
from tests.everyday import sampled
from tests.families.engines import tolerance
from tests.families.models import EVERYDAY, FAMILIES, SETTINGS, SIZES, VARIANT_OF, Family, RandomModel, draw_weights

OTHER_SETTINGS: tuple[tuple[Family, str, Any], ...] = (
    ("gpt_oss", "sliding_window", 64),
    ("gpt_oss", "swiglu_limit", 100.0),
    ("llama4_text", "attention_chunk_size", 64),
    ("llama4_text", "no_rope_layers", [1, 1, 1, 1]),
    ("llama4_text", "attn_scale", 0.0),
    ("llama4_text", "use_qk_norm", False),
    ("gemma4_text", "sliding_window", 64),
    ("gemma4_text", "final_logit_softcapping", 100.0),
    ("gemma3n_text", "sliding_window", 64),
    ("gemma3n_text", "activation_sparsity_pattern", [0.0] * 6),
    ("gpt2", "scale_attn_by_inverse_layer_idx", False),
)


@torch.no_grad()
def logits_of(built: PreTrainedModel, model: RandomModel) -> Tensor:
    """Logits of all prompts: (prompt, token, vocabulary)."""
    logits: Tensor = built(input_ids=model.prompts, use_cache=False).logits
    return logits


@pytest.mark.parametrize("model", sampled(EVERYDAY, RandomModel("gpt_oss"), RandomModel("qwen3_next")), ids=str)
def test_each_weight_matters(model: RandomModel) -> None:
    """Shift the entries of one weight after the other, and halve them: norms undo a factor alone."""
    built = model.build()
    clean, idle = logits_of(built, model), []
    for name, weight in built.named_parameters():
        original = weight.clone()
        weight.copy_(original.roll(1, -1) * 0.5)
        if float((logits_of(built, model) - clean).abs().max()) <= MIN_CHANGE_SHARE * tolerance(model):
            idle.append(name)
        weight.copy_(original)
    assert all(name.endswith("k_proj.bias") for name in idle), idle  # without RoPE, the softmax undoes it


@pytest.mark.parametrize(("family", "setting", "value"), OTHER_SETTINGS)
def test_each_setting_matters(family: Family, setting: str, value: Any) -> None:
    """The same weights with another setting."""
    model = RandomModel(family)
    config = AutoConfig.for_model(VARIANT_OF.get(family, family), **(SIZES | SETTINGS[family] | {setting: value}))
    other = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    draw_weights(other, model.scale, model.seed)
    change = (logits_of(other, model) - logits_of(model.build(), model)).abs().max()
    assert change > MIN_CHANGE_SHARE * tolerance(model)


@pytest.mark.parametrize("family", FAMILIES)
def test_derived_anatomy_passes_the_self_check(family: Family) -> None:
    """Also under `--rounding`: at this scale no family exceeds what the check allows for."""
    built = RandomModel(family, scale=0.6).build()
    assert check(built) == derive(built)
