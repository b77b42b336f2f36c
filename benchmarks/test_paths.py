"""Path patching, all senders of a stage at once, against one full forward per sender.

Shape: see `benchmarks/model.py`. Sixteen prompts; the kept heads are the paper's k scaled from 672 heads to 144. The
naive schedule is measured on `SAMPLE` senders with the prompts batched, logits of the last row only, and counted as
one forward per head in stage A and two in the others.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks import median_seconds
from benchmarks.costs import Shape, minimum_cost, naive
from benchmarks.model import (
    HEADS,
    HIDDEN,
    INNER,
    KV_HEADS,
    LAYERS,
    ROLES,
    TOKENS,
    VOCABULARY,
    benchmark_model,
    benchmark_prompts,
)
from rebinding.experiments.paths.measure import NoisePairs, score_stage
from rebinding.experiments.paths.request import PAPER, PathSettings, Stage
from rebinding.experiments.tokens import token_batch
from rebinding.surgery import TorchSurgeon, derive

PROMPTS, SAMPLE = 16, 2
SHAPE = Shape(LAYERS, HEADS, KV_HEADS, HIDDEN // HEADS, HIDDEN, INNER, VOCABULARY, TOKENS)
RECEIVERS: dict[str, list[tuple[int, int]]] = {
    "A": [],
    "B": [(6, 1), (7, 4), (8, 0), (8, 9), (9, 2), (9, 11), (10, 3), (10, 7), (11, 5), (11, 8)],
    "C": [(4, 3), (5, 6), (6, 0), (6, 10), (7, 2), (7, 9), (8, 4), (8, 7), (9, 1), (10, 5)],
    "D": [(4, 2), (5, 8), (6, 4), (7, 1), (8, 10)],
    "E": [(3, 6), (6, 3)],
}
"""Ten, ten, five and two heads in the layers in which the paper finds them."""


@pytest.fixture(scope="module")
def surgeon() -> TorchSurgeon:
    """The benchmark model under a surgeon."""
    model = benchmark_model()
    return TorchSurgeon(model, derive(model))


@pytest.fixture(scope="module")
def scene(surgeon: TorchSurgeon) -> NoisePairs:
    """Clean and noise prompts; recorded beforehand, as for every stage after the first."""
    clean, noise = benchmark_prompts(PROMPTS), benchmark_prompts(PROMPTS, seed=2)
    scene = NoisePairs(
        tuple(range(PROMPTS)), tuple(clean), tuple(noise), torch.arange(PROMPTS), torch.arange(PROMPTS)[:, None]
    )
    for stage in PAPER:
        scene.block(surgeon, stage, slice(0, PROMPTS))
    return scene


@pytest.fixture(scope="module")
def times() -> dict[str, float]:
    """Seconds that the parts took, for the sum over stages at the end."""
    return {}


@pytest.mark.parametrize("group", ["A", "B", "C", "D", "E"])
def test_naive(benchmark: Any, surgeon: TorchSurgeon, scene: NoisePairs, times: dict[str, float], group: str) -> None:
    """The baseline: full hooked forwards, all prompts in a batch, one sender at a time."""
    tokens = token_batch(scene.clean)

    @torch.no_grad()
    def forwards() -> None:
        for _ in range(SAMPLE):
            output = surgeon.model.model.layers[6].self_attn.o_proj
            handle = output.register_forward_pre_hook(lambda _module, args: (args[0] * 1.0,))
            surgeon.model(tokens, use_cache=False, logits_to_keep=1)
            handle.remove()

    units = SAMPLE / ((1 if group == "A" else 2) * LAYERS * HEADS)
    benchmark.group = f"stage {group}"
    benchmark.extra_info.update(units=units, baseline=True)
    benchmark.pedantic(forwards, rounds=2, warmup_rounds=int(group == "A"))
    times[f"naive {group}"] = median_seconds(benchmark) / units


@pytest.mark.parametrize("frozen", ["all", "none"])
@pytest.mark.parametrize("stage", PAPER, ids=lambda stage: stage.group)
def test_stage(
    benchmark: Any, surgeon: TorchSurgeon, scene: NoisePairs, times: dict[str, float], stage: Stage, frozen: Any
) -> None:
    """One stage, every head a sender."""
    receivers = RECEIVERS[stage.group]
    settings = PathSettings(frozen, "head", block=PROMPTS)
    benchmark.group = f"stage {stage.group}"
    allowed = naive(SHAPE, stage) / minimum_cost(SHAPE, stage, ROLES, receivers, frozen=frozen == "all")
    benchmark.extra_info.update(units=1, allowed=allowed)
    cheap = stage.group in "AB"
    benchmark.pedantic(
        score_stage,
        (surgeon, scene, stage, receivers),
        {"settings": settings},
        rounds=3 if cheap else 1,
        warmup_rounds=int(cheap),
    )
    times[f"{frozen} {stage.group}"] = median_seconds(benchmark)


def test_recordings(benchmark: Any, surgeon: TorchSurgeon, times: dict[str, float]) -> None:
    """What the stages share: recording clean and noise prompts; printed with the sum over stages."""
    clean, noise = benchmark_prompts(PROMPTS), benchmark_prompts(PROMPTS, seed=2)

    def record() -> None:
        scene = NoisePairs(
            tuple(range(PROMPTS)), tuple(clean), tuple(noise), torch.arange(PROMPTS), torch.arange(PROMPTS)[:, None]
        )
        for stage in PAPER:
            scene.block(surgeon, stage, slice(0, PROMPTS))

    benchmark.pedantic(record, rounds=2)
    shared = median_seconds(benchmark)
    total = sum(naive(SHAPE, stage) for stage in PAPER)
    for frozen in ("all", "none"):
        floor = sum(
            minimum_cost(SHAPE, stage, ROLES, RECEIVERS[stage.group], frozen=frozen == "all") for stage in PAPER
        )
        allowed = total / (floor + 2 * SHAPE.forward())
        actual = shared + sum(times[f"{frozen} {stage.group}"] for stage in PAPER)
        ratio = sum(times[f"naive {stage.group}"] for stage in PAPER) / actual
        print(
            f"\nfive stages and recordings, frozen={frozen}: {ratio:.1f}x, operations allow {allowed:.1f}x, "
            f"quotient {ratio / allowed:.0%}"
        )
