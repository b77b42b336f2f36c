"""How many prompts are recorded and edited together: few on a CPU, what a device holds elsewhere."""

from __future__ import annotations

import pytest

from rebinding.surgery import TorchSurgeon, derive
from rebinding.surgery.memory import CPU_BUDGET, MOST_PROMPTS, PROMPTS, RECORDING, recorded_bytes
from tests.surgery.models import FAMILIES, Family, tiny, tokens

LONG = 10_000
"""Tokens of a prompt of which a hundred take about as much as a batch on a CPU may."""


@pytest.mark.parametrize("family", FAMILIES)
def test_the_size_of_a_recording_is_known_beforehand(family: Family) -> None:
    surgeon, prompts = TorchSurgeon(tiny(family), derive(tiny(family))), tokens(family, 3)
    expected = 3 * recorded_bytes(surgeon.model, surgeon.anatomy, prompts.shape[1])
    assert surgeon.record(prompts, keep={"z"}).bytes() == expected


def surgeon_with(budget: list[int]) -> TorchSurgeon:
    """A surgeon that has as much memory as `budget` says at the time."""
    return TorchSurgeon(tiny("llama"), derive(tiny("llama")), budget=lambda: budget[0])


def test_a_cpu_takes_few() -> None:
    model = tiny("llama")
    assert TorchSurgeon(model, derive(model)).prompts_at_once(1) == PROMPTS
    assert surgeon_with([CPU_BUDGET]).prompts_at_once(1) == PROMPTS


def test_a_device_takes_what_its_memory_allows() -> None:
    surgeon = surgeon_with([40 * CPU_BUDGET])
    one = recorded_bytes(surgeon.model, surgeon.anatomy, LONG)
    assert surgeon.prompts_at_once(LONG) == int(40 * CPU_BUDGET * RECORDING) // one
    assert PROMPTS < surgeon.prompts_at_once(LONG) < MOST_PROMPTS
    assert surgeon.prompts_at_once(1) == MOST_PROMPTS
    assert surgeon.prompts_at_once(100 * LONG) == PROMPTS


def test_the_number_stays_until_half_of_it_fits() -> None:
    """So recordings are shared although the free memory changes all the time."""
    budget = [40 * CPU_BUDGET]
    surgeon = surgeon_with(budget)
    first = surgeon.prompts_at_once(LONG)
    for share in (0.6, 2.0):
        budget[0] = int(share * 40 * CPU_BUDGET)
        assert surgeon.prompts_at_once(LONG) == first
    budget[0] = int(0.4 * 40 * CPU_BUDGET)
    assert surgeon.prompts_at_once(LONG) == surgeon_with(budget).prompts_at_once(LONG) < first
