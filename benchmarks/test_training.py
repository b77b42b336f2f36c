"""A training step against the same step on padded prompts, and against its matrix products alone, in one run.

The floor is the products that a step cannot do without: forward, and backward to the inputs, of every projection at
every node of the tree; no gradient of a base matrix is needed, and none goes below the first adapted layer. Twelve
layers, hidden 768; the fastest repetition counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from benchmarks.model import benchmark_model
from rebinding.learned.evaluation import tree
from rebinding.learned.lora import attached, layer_of
from rebinding.learned.training import Recipe, Training, curriculum
from rebinding.planted.tokenizer import build_tokenizer
from rebinding.task.prompts import Encoder
from rebinding.task.words import Vocabulary

REPEATS = 3
PADDED_AT_LEAST, FLOOR_AT_LEAST = 1.5, 0.4
ROUNDING = 1e-3
"""Relative, of the norm of all gradients: float32, 12 layers, two orders of the same sums."""


def fastest(act: Callable[[], object]) -> float:
    """Seconds of the fastest repetition."""
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        act()
        times.append(time.perf_counter() - begin)
    return min(times)


def padded_loss(training: Training, number: int) -> Tensor:
    """The loss of a step with every prompt in a row of its own, padded on the right."""
    encoder = training.encoder
    prompts = curriculum(training.vocabulary, training.recipe, number)
    rows = [torch.tensor(prompt.ids) for prompt in encoder.encode(prompts)]
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)  # (prompt, token)
    lengths = torch.tensor([len(row) for row in rows])
    mask = torch.arange(ids.shape[1]) < lengths[:, None]
    hidden = training.model.model(input_ids=ids, attention_mask=mask.long(), use_cache=False).last_hidden_state
    logits = training.model.lm_head(hidden[torch.arange(len(rows)), lengths - 1])  # (prompt, vocabulary)
    return nn.functional.cross_entropy(
        logits, torch.tensor([encoder.answer_token(prompt.answer) for prompt in prompts])
    )


def gradients(training: Training) -> Tensor:
    return torch.cat([tensor.grad.flatten() for tensor in training.adapter.tensors() if tensor.grad is not None])


def products(model: LlamaForCausalLM, nodes: int, ends: int, first: int) -> Callable[[], None]:
    """The matrix products of a step."""
    inputs = {width: torch.randn(nodes, width) for width in (model.config.hidden_size, model.config.intermediate_size)}
    weights = [
        (module.weight.detach(), 2 if layer_of(name) > first else 1)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and "layers" in name
    ]

    def multiply() -> None:
        for weight, _ in weights:
            out = inputs[weight.shape[1]] @ weight.T
        for weight, passes in weights:
            if passes == 2:
                out = torch.empty(nodes, weight.shape[0]).fill_(1.0) @ weight
        out = inputs[model.config.hidden_size][:ends] @ model.lm_head.weight.T
        out @ model.lm_head.weight

    return multiply


@pytest.mark.benchmark(group="training")
def test_a_step_against_padding_and_against_its_products() -> None:
    training = Training(benchmark_model(), Encoder(build_tokenizer()), Vocabulary(), Recipe(rate=1e-9), "benchmark")
    prompts = curriculum(training.vocabulary, training.recipe, 0)
    nodes = tree([prompt.ids for prompt in training.encoder.encode(prompts)]).ids.shape[1]
    first = min(map(layer_of, training.adapter.pairs))
    with attached(training.model, training.adapter):
        ours = fastest(lambda: training.step(0))
        training.optimizer.zero_grad()
        padded_loss(training, 0).backward()
        expected = gradients(training)
        padded = fastest(lambda: padded_loss(training, 0).backward())
        training.step(0)  # gradients are clipped: compare directions
    actual = gradients(training)
    floor = fastest(products(training.model, nodes, len(prompts), first))
    print(
        f"\none step of {len(prompts)} prompts, {nodes} nodes: {ours:.2f} s; padded {padded:.2f} s ({padded / ours:.2f}"
        f" times); its products {floor:.2f} s ({floor / ours:.0%})"
    )
    assert float((actual / actual.norm() - expected / expected.norm()).norm()) < ROUNDING
    assert padded / ours >= PADDED_AT_LEAST
    assert floor / ours >= FLOOR_AT_LEAST
