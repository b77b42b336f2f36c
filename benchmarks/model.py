"""The model that the benchmarks run on: a random Llama, small enough for a laptop and large enough to be a model."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rebinding.task.boxes import Contains, Story, Swap
from rebinding.task.prompts import Encoded, Prompt

LAYERS, HEADS, KV_HEADS, HIDDEN, INNER, VOCABULARY, TOKENS = 12, 12, 4, 768, 3072, 16384, 75
ROLES = {
    "context_asked": 44,
    "context_asked_object": 47,
    "context_partner": 49,
    "context_partner_object": 51,
    "swap_partner": 60,
    "swap_asked": 62,
    "swap_period": 63,
    "question_box": 68,
    "readout": 74,
}
"""Where the roles stand in 75 tokens, in the proportions of the wrapped Llama-3 prompt of 106."""


def benchmark_model() -> LlamaForCausalLM:
    """Random weights, float32, on the library's own eager attention."""
    torch.manual_seed(0)
    config = LlamaConfig(  # type: ignore[call-arg]  # attn_implementation is not in its signature
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HIDDEN // HEADS,
        attn_implementation="eager",
    )
    model: LlamaForCausalLM = LlamaForCausalLM(config).eval()
    return model


def benchmark_prompts(n: int, seed: int = 1) -> list[Encoded]:
    """Random tokens with the roles in their places; nobody looks at the story."""
    tokens = torch.randint(0, VOCABULARY, (n, TOKENS), generator=torch.Generator().manual_seed(seed))
    story = Story((Contains("A", "egg"), Contains("B", "fan")), (Swap("B", "A"),))
    return [Encoded("", tuple(row.tolist()), dict(ROLES), prompt=Prompt(story, "A")) for row in tokens]
