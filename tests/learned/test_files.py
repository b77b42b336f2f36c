"""An adapter's options: those of a plain one pass, whatever else says something is named."""

from __future__ import annotations

from typing import Any

import pytest

from rebinding.learned.files import is_finite_number, unsupported_options

# fmt: off
PLAIN: dict[str, Any] = {
    "alora_invocation_tokens": None, "alpha_pattern": {}, "arrow_config": None, "auto_mapping": None,
    "base_model_name_or_path": "owner/name", "bias": "none", "corda_config": None, "ensure_weight_tying": False,
    "eva_config": None, "exclude_modules": None, "fan_in_fan_out": False, "inference_mode": True,
    "init_lora_weights": True, "kasa_config": None, "layer_replication": None, "layers_pattern": None,
    "layers_to_transform": None, "loftq_config": {}, "lora_alpha": 32, "lora_bias": False, "lora_dropout": 0.05,
    "lora_ga_config": None, "megatron_config": None, "megatron_core": "megatron.core", "modules_to_save": None,
    "monteclora_config": None, "peft_type": "LORA", "peft_version": "0.21.2", "qalora_group_size": 16, "r": 16,
    "rank_pattern": {}, "revision": None, "target_modules": ["q_proj"], "target_parameters": None,
    "task_type": "CAUSAL_LM", "trainable_token_indices": None, "use_bdlora": None, "use_dora": False,
    "use_qalora": False, "use_rslora": False, "velora_config": None,
}
"""What peft 0.21.2 writes of a plain adapter."""
# fmt: on


def test_plain_peft_adapter_passes() -> None:
    assert unsupported_options(PLAIN) == []


@pytest.mark.parametrize("value", [True, False, None, "gaussian", "orthogonal", "eva"])
def test_beginnings_that_leave_the_base_alone_pass(value: object) -> None:
    assert unsupported_options({**PLAIN, "init_lora_weights": value}) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("use_dora", True),
        ("use_rslora", True),
        ("use_bdlora", {"nblocks": 2}),
        ("rank_pattern", {"q_proj": 8}),
        ("modules_to_save", ["lm_head"]),
        ("target_parameters", ["mlp.experts.gate_up_proj"]),
        ("velora_config", {"num_groups": 4}),
        ("monteclora_config", {"samples": 4}),
        ("bias", "all"),
        ("bias", True),
        ("init_lora_weights", "pissa_niter_4"),
        ("init_lora_weights", "lora_ga"),
        ("init_lora_weights", 1),
        ("of_a_later_version", True),
        ("of_a_later_version", 0),
        ("of_a_later_version", ""),
    ],
)
def test_anything_else_is_named(name: str, value: object) -> None:
    assert unsupported_options({**PLAIN, name: value}) == [name]


def test_numbers_are_finite() -> None:
    assert is_finite_number(6)
    assert is_finite_number(-0.5)
    assert not any(map(is_finite_number, (float("nan"), float("inf"), 10**400, True, "6", None)))
