"""A rehearsal on hollow tensors says of small shapes what a run of them on the CPU takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from rebinding.evidence import Request
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.paper.procedure import given
from rebinding.rehearsal.pretended import Pretence, pretended
from rebinding.rehearsal.subject import hollow_bench
from rebinding.study import circuit, roles
from rebinding.study.bench import Bench
from rebinding.subjects import build_shape
from rebinding.surgery.memory import CPU_BUDGET

SIZES = {"small": (3, 128), "middle": (5, 256), "large": (7, 384)}
"""Layers and hidden size of three shapes."""
WITHIN = 0.2
"""How far the peak of a plan may be off: its promise."""
TOKENS = 83


def overrides(layers: int, hidden: int) -> dict[str, Any]:
    return {
        **{"num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": 3 * hidden, "vocab_size": 4000},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64},
        "layer_types": (["sliding_attention", "full_attention"] * layers)[:layers],
    }


def requests(bench: Bench) -> Iterator[tuple[str, Request]]:
    """A kind that only reads, one with frozen runs, one with live runs. In none of them is anything still or unheard,
    which a run leaves out and a rehearsal cannot know, and none asks which prompts are answered correctly."""
    anatomy = bench.subject.anatomy
    heads = Circuit(tuple(CircuitHead("B", layer, 1, "readout") for layer in range(1, anatomy.n_layers)))
    ways = given("published")
    way = replace(ways.circuit, noise=("independent",), frozen=("all",), scope="head")
    pairs = circuit.noise_pairs(bench, way, 4)
    yield "ability", circuit.ability(bench, bench.design("published"), 8)
    yield "path patching A", circuit.link(pairs, circuit.STAGES["A"], (), way)
    yield "roles", roles.interchanged(bench, heads, bench.design("published"), "pointer", 4, ways.roles)


def real(hollow: Bench, size: str) -> Bench:
    """The same bench with weights on the CPU."""
    model = build_shape("gemma2-9b", dtype=torch.float32, device=torch.device("cpu"), **overrides(*SIZES[size]))
    return Bench(replace(hollow.subject, opened=lambda: model, device=torch.device("cpu"), surgeons=[]))  # type: ignore[call-arg]


def run(bench: Bench, request: Request) -> tuple[int, int]:
    """FLOP by torch's own counter, and the bytes that its allocator gave out at the most, above what was out before."""
    with (
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen,
        FlopCounterMode(display=False) as flop,
    ):
        bench.measured(request)
    assert seen.profiler is not None
    sizes = [one.nbytes() for one in seen.profiler.kineto_results.events() if one.name() == "[memory]"]
    return flop.get_total_flops(), int(torch.tensor(sizes).cumsum(0).max())


@pytest.fixture(scope="module", params=SIZES)
def both(request: pytest.FixtureRequest) -> tuple[Pretence, Bench, Bench]:
    pretence = Pretence(hollow=True)
    with pretence:
        bench = hollow_bench(
            "gemma2-9b", pretence, dtype="float32", tokens=TOKENS, budget=lambda: CPU_BUDGET,
            **overrides(*SIZES[request.param]),
        )  # fmt: skip
    return pretence, bench, real(bench, request.param)


def test_flop_and_peak_memory(both: tuple[Pretence, Bench, Bench]) -> None:
    pretence, hollow, here = both
    ledger, place = pretence.ledger, pretended()
    for what, request in requests(here):
        with pretence:
            ledger.reset()
            before = ledger.live[place]
            hollow.measured(request)
        flop, peak = run(here, request)
        assert ledger.flop == flop, what
        assert ledger.peak[place] - before == pytest.approx(peak, rel=WITHIN), what
