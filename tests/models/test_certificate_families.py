"""Certificates of families whose layers differ: shared keys, residual streams, sinks, mixers, gates, chunks."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rebinding.models import check
from rebinding.paper.certificate import Certificate
from rebinding.surgery import Anatomy, replay
from rebinding.surgery.calling import MixerRun

SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
ALTERNATING = ["sliding_attention", "full_attention"] * 2
LINEAR = {"linear_key_head_dim": 6, "linear_value_head_dim": 5, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
FEW_EXPERTS = {"num_local_experts": 3, "num_experts_per_tok": 1}
SETTINGS: dict[str, dict[str, Any]] = {
    "gemma3n_text": {
        "num_hidden_layers": 6,
        "num_kv_shared_layers": 2,
        "layer_types": [*ALTERNATING, "sliding_attention", "full_attention"],
        "altup_num_inputs": 3,
        "laurel_rank": 6,
        "hidden_size_per_layer_input": 7,
        "vocab_size_per_layer_input": 101,
        "sliding_window": 5,
        "activation_sparsity_pattern": [0.0] * 6,
    },
    "qwen3_5_text": LINEAR | {"layer_types": ["linear_attention", "full_attention"] * 2, "initializer_range": 0.1},
    "gpt_oss": FEW_EXPERTS | {"sliding_window": 5, "layer_types": ALTERNATING},
    "llama4_text": FEW_EXPERTS
    | {"attention_chunk_size": 5, "no_rope_layers": [1, 0, 1, 0], "moe_layers": [1], "intermediate_size_mlp": 40},
}


@functools.cache
def checked(kind: str) -> tuple[PreTrainedModel, Anatomy]:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **SIZES | SETTINGS[kind])
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.eval().requires_grad_(False)
    return model, check(model)


def certificate_of(kind: str) -> Certificate:
    model, anatomy = checked(kind)
    return check(model, "certify", anatomy)


@pytest.mark.parametrize("kind", SETTINGS)
def test_every_layer_is_certified_at_the_sites_that_it_has(kind: str) -> None:
    _, anatomy = checked(kind)
    certificate = certificate_of(kind)
    assert certificate.failures == []
    with_heads = {layer for layer, _ in anatomy.heads}
    for result in certificate.sites:
        site = result.site.split()[0]
        without_heads = {"resid": set(range(anatomy.n_layers + 1)), "logits": {anatomy.n_layers}}
        without_heads["mlp_out"] = set(range(anatomy.n_layers))
        assert set(result.layers) == without_heads.get(site, with_heads), result.site
    gaps = {gap.reason: gap.layers for gap in certificate.gaps if gap.what != "fast frozen path"}
    lacking = tuple(sorted(set(range(anatomy.n_layers)) - with_heads))
    assert gaps == ({"the layer has no attention heads": lacking} if lacking else {})


def test_a_mixer_that_starts_in_the_middle_of_the_prompt_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay runs it on its own window only."""
    monkeypatch.setattr(replay, "MixerRun", lambda before=None, output=None: MixerRun(output=output))
    certificate = certificate_of("qwen3_5_text")
    assert certificate.replay > 1
    wrong = {result.site for result in certificate.sites if result.deviation > 1}
    assert {"resid", "mlp_out", "z"} <= wrong
    assert not {site for site in wrong if site.endswith("frozen")}  # there its output is held


def test_keys_that_do_not_reach_the_layers_above_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay gives layers that share keys the recorded ones."""
    right = replay.complete_keys

    def recorded_keys(shared: Any, *arguments: Any) -> None:
        shared.clear()
        right(shared, *arguments)

    monkeypatch.setattr(replay, "complete_keys", recorded_keys)
    certificate = certificate_of("gemma3n_text")
    wrong = {result.site for result in certificate.sites if result.deviation > 1}
    assert {"resid", "k group", "v group"} <= wrong
    assert not {site for site in wrong if site.endswith("frozen")}  # there nothing reads keys
