"""A rehearsal on hollow tensors says of small shapes what a run of them on the CPU takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from rebinding.cost.fake_device import FakeDevice, pretended
from rebinding.evidence import Request
from rebinding.experiments.paths.request import STAGE_BY_NAME, draw_noise_pairs, request_paths
from rebinding.experiments.roles.request import request_interchange
from rebinding.experiments.unedited.request import request_ability
from rebinding.experiments.workbench import Workbench, measure_of
from rebinding.models import build_shape
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.paper.procedure import given
from tests.cost.small import SIZES, hollow_bench, overrides

WITHIN = 0.2
"""How far the peak of a rehearsal may be off."""


def requests(bench: Workbench) -> Iterator[tuple[str, Request]]:
    """A kind that only reads, one with frozen runs, one with live runs. In none of them is anything still or unheard,
    which a run leaves out and a rehearsal cannot know, and none asks which prompts are answered correctly."""
    anatomy = bench.loaded_model.anatomy
    heads = Circuit(tuple(CircuitHead("B", layer, 1, "readout") for layer in range(1, anatomy.n_layers)))
    ways = given("published")
    way = replace(ways.circuit, noise=("independent",), frozen=("all",), scope="head")
    prompts = bench.prompts
    pairs, drawn = draw_noise_pairs(prompts, way, 4), prompts.design("published")
    yield "ability", request_ability(prompts, drawn, 8)
    yield "path patching A", request_paths(pairs, STAGE_BY_NAME["A"], (), way)
    yield "roles", request_interchange(prompts, heads, drawn, "pointer", 4, ways.roles)


def real(hollow: Workbench, size: str) -> Workbench:
    """The same bench with weights on the CPU."""
    model = build_shape("gemma2-9b", dtype=torch.float32, device=torch.device("cpu"), **overrides(*SIZES[size]))
    return Workbench(replace(hollow.loaded_model, loader=lambda: model, device=torch.device("cpu"), surgeons=[]))  # type: ignore[call-arg]


def run(bench: Workbench, request: Request) -> tuple[int, int]:
    """FLOP by torch's own counter, and the bytes that its allocator gave out at the most, above what was out before."""
    with (
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen,
        FlopCounterMode(display=False) as flop,
    ):
        measure_of(type(request))(bench, request)
    assert seen.profiler is not None
    sizes = [one.nbytes() for one in seen.profiler.kineto_results.events() if one.name() == "[memory]"]
    return flop.get_total_flops(), int(torch.tensor(sizes).cumsum(0).max())


@pytest.fixture(scope="module", params=SIZES)
def both(request: pytest.FixtureRequest) -> tuple[FakeDevice, Workbench, Workbench]:
    fake_device = FakeDevice(hollow=True)
    bench = hollow_bench(fake_device, request.param)
    return fake_device, bench, real(bench, request.param)


def test_flop_and_peak_memory(both: tuple[FakeDevice, Workbench, Workbench]) -> None:
    fake_device, hollow, here = both
    ledger, place = fake_device.ledger, pretended()
    for what, request in requests(here):
        with fake_device:
            ledger.reset()
            before = ledger.live[place]
            measure_of(type(request))(hollow, request)
        flop, peak = run(here, request)
        assert ledger.flop == flop, what
        assert ledger.peak[place] - before == pytest.approx(peak, rel=WITHIN), what
