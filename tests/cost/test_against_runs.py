"""The costs that are counted on hollow tensors are those of a run on the CPU, for small shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from rebinding.cost.fake_device import FakeDevice, fake_accelerator
from rebinding.evidence import Request
from rebinding.experiments.paths.request import STAGE_BY_NAME, request_paths
from rebinding.experiments.prompts import draw_noise_pairs
from rebinding.experiments.roles.request import request_interchange
from rebinding.experiments.table import experiment_of
from rebinding.experiments.unedited import request_ability
from rebinding.experiments.workbench import Workbench
from rebinding.models import build_shape
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.paper.procedure import builtin_procedure
from tests.cost.small import SIZES, hollow_bench, overrides
from tests.everyday import sampled

TOLERANCE = 0.2
"""The largest relative error of the peak of memory."""


def requests(bench: Workbench) -> Iterator[tuple[str, Request]]:
    """A kind that only reads, one with frozen runs, one with live runs. None of them has no-ops or senders without
    receivers, which a run skips and the count of costs cannot know, and none selects prompts that are answered
    correctly."""
    anatomy = bench.loaded_model.anatomy
    heads = Circuit(tuple(CircuitHead("B", layer, 1, "readout") for layer in range(1, anatomy.n_layers)))
    procedure = builtin_procedure("published")
    conventions = replace(procedure.circuit, noise=("independent",), frozen=("all",), scope="head")
    prompts = bench.prompts
    pairs, design = draw_noise_pairs(prompts, conventions, 4), prompts.design("published")
    yield "ability", request_ability(prompts, design, 8)
    yield "path patching A", request_paths(pairs, STAGE_BY_NAME["A"], (), conventions)
    yield "roles", request_interchange(prompts, heads, design, "pointer", 4, procedure.roles)


def real(hollow: Workbench, size: str) -> Workbench:
    """The same bench with weights on the CPU."""
    model = build_shape("gemma2-9b", dtype=torch.float32, device=torch.device("cpu"), **overrides(*SIZES[size]))
    return Workbench(replace(hollow.loaded_model, loader=lambda: model, device=torch.device("cpu"), surgeons=[]))  # type: ignore[call-arg]


def run(bench: Workbench, request: Request) -> tuple[int, int]:
    """FLOP by torch's own counter, and the bytes that its allocator gave out at the most, above what was out before."""
    with (
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler_run,
        FlopCounterMode(display=False) as flop,
    ):
        experiment_of(type(request)).run(bench, request)
    assert profiler_run.profiler is not None
    sizes = [event.nbytes() for event in profiler_run.profiler.kineto_results.events() if event.name() == "[memory]"]
    return flop.get_total_flops(), int(torch.tensor(sizes).cumsum(0).max())


@pytest.fixture(scope="module", params=sampled(SIZES))
def benches(request: pytest.FixtureRequest) -> tuple[FakeDevice, Workbench, Workbench]:
    fake_device = FakeDevice()
    bench = hollow_bench(fake_device, request.param)
    return fake_device, bench, real(bench, request.param)


def test_flop_and_peak_memory(benches: tuple[FakeDevice, Workbench, Workbench]) -> None:
    fake_device, hollow, on_cpu = benches
    ledger, place = fake_device.ledger, fake_accelerator()
    for name, request in requests(on_cpu):
        with fake_device:
            ledger.reset()
            before = ledger.live[place]
            experiment_of(type(request)).run(hollow, request)
        flop, peak = run(on_cpu, request)
        assert ledger.flop == flop, name
        assert ledger.peak[place] - before == pytest.approx(peak, rel=TOLERANCE), name
