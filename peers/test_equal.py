"""Every library gives the numbers of our stages, on a random Llama with grouped keys."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from peers.forwards import PEERS
from peers.ours import make_pairs, make_task, measure_effects
from peers.stages import stacked, stage
from rebinding.surgery import TorchSurgeon, derive
from tests.close import agree, is_changed

SENDERS = [(0, 1), (1, 3), (2, 0)]
RECEIVERS = {"A": [], "B": [(2, 3), (3, 0), (3, 2)]}


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=200, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, initializer_range=0.2, attn_implementation="eager",
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("group", RECEIVERS)
@torch.no_grad()
def test_a_library_gives_our_numbers(model: Any, name: str, group: str) -> None:
    surgeon = TorchSurgeon(model, derive(model))
    scene = make_pairs(surgeon, prompts=4, tokens=12, vocabulary=200)
    expected = measure_effects(surgeon, scene, group, SENDERS, RECEIVERS[group])  # (sender, prompt)
    forward, task = PEERS[name](model), make_task(surgeon, scene)
    actual = stage(forward, task, SENDERS, RECEIVERS[group])
    clean = model(task.clean).logits[:, -1].gather(1, task.labels[:, None])[:, 0]  # (prompt,)
    assert is_changed(actual[:2], clean.expand(2, -1))  # both are below the receivers
    assert agree(actual, expected)
    assert agree(stacked(forward, task, SENDERS, RECEIVERS[group]), expected)
