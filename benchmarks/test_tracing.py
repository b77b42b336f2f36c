"""A full tracing map against one forward pass per cell, in one run: 12 layers, hidden 768, three roles.

Every cell of the naive map costs the same pass over all tokens and layers, so a part of its cells, drawn at random, is
timed and stands for the rest; those cells are compared. The replayed map is timed whole. The two take turns, so that a
busy machine slows both.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from rebinding.experiments.tracing.maps import TracedPair, changing, patched_logits, traced_pair
from rebinding.report.figures.tracing import PANELS
from rebinding.surgery import TorchSurgeon, derive
from rebinding.task.designs import design
from rebinding.task.prompts import Encoder
from tests.reference.naive.edits import residuals
from tests.reference.naive.plain_model import Plain

TOKENIZER = Path(__file__).parents[1] / "tests" / "reference" / "llama-tiny" / "model"
PROMPTS = 2
TIMED = 8
"""Cells of the naive map that are timed, for each role."""
AT_LEAST = 8.0
ROUNDING = 4e-5
"""Float32, 12 layers, logits of size 4: ten times the largest difference seen in a sample of cells, 4e-6."""


def make_model(vocabulary: int) -> PreTrainedModel:
    torch.manual_seed(0)
    config = LlamaConfig(  # type: ignore[call-arg]  # attn_implementation is not in its signature
        vocab_size=vocabulary,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        attn_implementation="eager",
    )
    model: PreTrainedModel = LlamaForCausalLM(config).eval().requires_grad_(False)
    for weight in model.parameters():
        weight.data.mul_(2.0 if weight.ndim > 1 else 1.0)
    return model


def naive(model: PreTrainedModel, pairs: list[TracedPair], cells: list[tuple[int, int]]) -> tuple[float, torch.Tensor]:
    """Seconds and logits (cell, prompt, vocabulary) of some cells; the recording of the originals is not counted."""
    plain = Plain(model)
    puts = [[residuals(plain, pair.original.ids, [cell]) for pair in pairs] for cell in cells]
    begin = time.perf_counter()
    logits = [
        plain.run([(pair.counterfactual.ids, put) for pair, put in zip(pairs, puts_of_cell, strict=True)]).logits
        for puts_of_cell in puts
    ]
    return time.perf_counter() - begin, torch.stack(logits)


def replayed(model: PreTrainedModel, pairs: list[TracedPair]) -> tuple[float, torch.Tensor]:
    """Seconds and logits (prompt, layer, token, candidate) of the whole map, recordings included."""
    surgeon = TorchSurgeon(model, derive(model))
    layers, tokens = range(surgeon.anatomy.n_layers), range(len(pairs[0].original))
    begin = time.perf_counter()
    cells = changing(pairs, layers, tokens)
    logits = patched_logits(surgeon, pairs, cells, layers=layers, tokens=tokens).logits
    return time.perf_counter() - begin, logits


def test_full_map_against_one_forward_pass_per_cell(capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    encoder, plan = Encoder(tokenizer), design("published", tokenizer=tokenizer)
    model, dice = make_model(len(tokenizer)), random.Random(0)
    replay_seconds = naive_seconds = 0.0
    for panel in PANELS.values():
        pairs = [traced_pair(encoder, plan.tracing(number, panel.mode), "exp1_spaced") for number in range(PROMPTS)]
        all_cells = [(layer, token) for layer in range(12) for token in range(len(pairs[0].original))]
        cells = dice.sample(all_cells, TIMED)
        seconds, naive_logits = naive(model, pairs, cells)
        naive_seconds += seconds * len(all_cells) / len(cells)
        seconds, replayed_logits = replayed(model, pairs)
        replay_seconds += seconds
        candidates = torch.tensor([[*pair.candidates, pair.rival] for pair in pairs])  # (prompt, candidate)
        actual = torch.stack([replayed_logits[:, layer, token] for layer, token in cells])  # (cell, prompt, candidate)
        expected = naive_logits.gather(-1, candidates.expand(len(cells), -1, -1))
        assert (actual - expected).abs().max() < ROUNDING
        assert torch.equal(actual[..., :-1].argmax(-1), expected[..., :-1].argmax(-1))
    with capsys.disabled():
        print(
            f"\ntracing, 12 layers, {len(pairs[0].original)} tokens, 3 roles, {PROMPTS} prompts,"
            f" {torch.get_num_threads()} threads: {replay_seconds:.1f} s; one pass per cell {naive_seconds:.0f} s;"
            f" ratio {naive_seconds / replay_seconds:.1f}"
        )
    assert naive_seconds / replay_seconds >= AT_LEAST
