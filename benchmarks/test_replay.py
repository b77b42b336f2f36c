"""Replay against full hooked forwards, stacked candidates against one nnsight trace each, our attention against theirs.

Sixty-four candidates, each another head whose output at one token is replaced; of the last layer only at the readout,
since nothing that is read sees it elsewhere. The baseline runs a full forward with a
hook for each, logits of the last row only; it is measured on `SAMPLE` of them.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.model import HEADS, HIDDEN, LAYERS, ROLES, benchmark_model, benchmark_prompts
from rebinding.experiments.tokens import token_batch
from rebinding.surgery import Edit, Read, TorchSurgeon, derive, in_layer
from rebinding.surgery.attention import install
from rebinding.surgery.nnsight_surgeon import NNsightSurgeon

CANDIDATES, SAMPLE = 64, 4
ROUNDING = 1e-4  # float32 sums in another order, on logits of size 1; the test prints what it found


@pytest.fixture(scope="module")
def surgeon() -> TorchSurgeon:
    """The benchmark model under the torch surgeon."""
    model = benchmark_model()
    return TorchSurgeon(model, derive(model))


def candidates(position: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Layer, head and value of each candidate, spread over the layers at which a position can change the answer."""
    layers = LAYERS if position == ROLES["readout"] else LAYERS - 1
    places = torch.arange(CANDIDATES) * (layers * HEADS) // CANDIDATES
    values = torch.randn(CANDIDATES, HIDDEN // HEADS, generator=torch.Generator().manual_seed(3))
    return places // HEADS, places % HEADS, values


def edits(position: int) -> list[Edit]:
    """The candidates as edits, one a row."""
    layers, heads, values = candidates(position)
    return [
        Edit(
            "z", values[rows][:, None, None], at=[position], head=in_layer(int(layer), heads[rows][:, None]), rows=rows
        )
        for layer in layers.unique()
        for rows in [torch.nonzero(layers == layer).reshape(-1)]
    ]


@torch.no_grad()
def hooked(model: Any, tokens: torch.Tensor, number: int, position: int) -> torch.Tensor:
    """One candidate by a full forward with a hook."""
    layers, heads, values = candidates(position)
    span = slice(int(heads[number]) * (HIDDEN // HEADS), (int(heads[number]) + 1) * (HIDDEN // HEADS))

    def replace(module: Any, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
        z = args[0].clone()
        z[:, position, span] = values[number]
        return (z,)

    handle = model.model.layers[int(layers[number])].self_attn.o_proj.register_forward_pre_hook(replace)
    try:
        logits: torch.Tensor = model(tokens, use_cache=False, logits_to_keep=1).logits[:, -1]
        return logits
    finally:
        handle.remove()


@pytest.mark.parametrize("role", ["readout", "question_box", "swap_partner", "context_partner"])
def test_full_forwards(benchmark: Any, surgeon: TorchSurgeon, role: str) -> None:
    """The baseline."""
    tokens = token_batch(benchmark_prompts(1))
    benchmark.group = f"64 candidates from {role}"
    benchmark.extra_info.update(units=SAMPLE, baseline=True)
    benchmark.pedantic(lambda: [hooked(surgeon.model, tokens, n, ROLES[role]) for n in range(SAMPLE)], rounds=5)


@pytest.mark.parametrize("role", ["readout", "question_box", "swap_partner", "context_partner"])
def test_replay(benchmark: Any, surgeon: TorchSurgeon, role: str) -> None:
    """All candidates in one replay; equal to the baseline where it is run."""
    tokens = token_batch(benchmark_prompts(1))
    recording, source = surgeon.record(tokens), torch.zeros(CANDIDATES, dtype=torch.long)
    read = [Read("logits", at=[ROLES["readout"]])]
    benchmark.group = f"64 candidates from {role}"
    benchmark.extra_info.update(units=CANDIDATES)
    (actual,) = benchmark.pedantic(
        surgeon.run, (recording, edits(ROLES[role]), read), {"source": source}, rounds=5, warmup_rounds=1
    )
    for number in (0, 31, 63):
        expected = hooked(surgeon.model, tokens, number, ROLES[role])
        assert float((actual[number] - expected).abs().max()) < ROUNDING


@pytest.mark.parametrize("allow_noop", [True, False], ids=["no-ops allowed", "no-ops refused"])
def test_refusing_no_ops(benchmark: Any, surgeon: TorchSurgeon, allow_noop: bool) -> None:
    """Whether each row changed is looked at in the run itself, unless the caller allows that it did not."""
    recording, source = surgeon.record(token_batch(benchmark_prompts(1))), torch.zeros(CANDIDATES, dtype=torch.long)
    read = [Read("logits", at=[ROLES["readout"]])]
    benchmark.group = "64 candidates, no-ops refused or allowed"
    benchmark.extra_info.update(units=CANDIDATES, baseline=allow_noop)
    arguments = (recording, edits(ROLES["question_box"]), read)
    benchmark.pedantic(surgeon.run, arguments, {"source": source, "allow_noop": allow_noop}, rounds=9, warmup_rounds=1)


def test_one_trace_each(benchmark: Any, surgeon: TorchSurgeon) -> None:
    """The baseline: one nnsight trace per candidate, at the readout."""
    nnsight_surgeon = NNsightSurgeon(surgeon.model, surgeon.anatomy)
    recording = nnsight_surgeon.record(token_batch(benchmark_prompts(1)))
    layers, heads, values = candidates(ROLES["readout"])
    read = [Read("logits", at=[ROLES["readout"]])]

    def traces() -> None:
        for number in range(SAMPLE):
            edit = Edit("z", values[number], at=[ROLES["readout"]], head=[(int(layers[number]), int(heads[number]))])
            nnsight_surgeon.run(recording, [edit], read)

    benchmark.group = "64 candidates against nnsight"
    benchmark.extra_info.update(units=SAMPLE, baseline=True)
    benchmark.pedantic(traces, rounds=3, warmup_rounds=1)


@pytest.mark.parametrize("method", ["one nnsight trace for all", "replay"])
def test_stacked(benchmark: Any, surgeon: TorchSurgeon, method: str) -> None:
    """All candidates as rows of one call."""
    chosen_surgeon = surgeon if method == "replay" else NNsightSurgeon(surgeon.model, surgeon.anatomy)
    recording, source = (
        chosen_surgeon.record(token_batch(benchmark_prompts(1))),
        torch.zeros(CANDIDATES, dtype=torch.long),
    )
    read = [Read("logits", at=[ROLES["readout"]])]
    benchmark.group = "64 candidates against nnsight"
    benchmark.extra_info.update(units=CANDIDATES)
    benchmark.pedantic(chosen_surgeon.run, (recording, edits(ROLES["readout"]), read), {"source": source}, rounds=3)


@pytest.mark.parametrize("attention", ["eager", "sdpa", "ours"])
def test_attention(benchmark: Any, attention: str) -> None:
    """A forward of sixteen prompts with the library's eager attention (baseline), its sdpa, and ours."""
    model, tokens = benchmark_model(), token_batch(benchmark_prompts(16))
    if attention == "ours":
        install(model)
    else:
        model.set_attn_implementation(attention)

    @torch.no_grad()
    def forward() -> None:
        model(tokens, use_cache=False, logits_to_keep=1)

    benchmark.group = "attention functions"
    benchmark.extra_info.update(units=1, baseline=attention == "eager")
    benchmark.pedantic(forward, rounds=5, warmup_rounds=1)
