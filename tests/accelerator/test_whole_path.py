"""The whole path of a judged model, on one and on two fake devices that refuse to mix with the CPU.

The numbers are those of the CPU: the pretended device computes with the same kernels, so what a run brings back from
the wrong place, or before it was written (such memory holds NaN), is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from rebinding.evidence import Evidence
from rebinding.experiments.binding.summary import MEASURES, summary
from rebinding.experiments.paths.summary import scores
from rebinding.experiments.roles.summary import of_group
from rebinding.experiments.tracing.summary import gains_by_place
from rebinding.models.loaded_model import hash_weights
from rebinding.paper.procedure import builtin_procedure
from tests.accelerator.setup import Place, numbers, place_model, requests, waits_in_loops
from tests.close import allowance
from tests.everyday import sampled

PLACES = {"gemma3 on one device": ("pointer@gemma3", 1), "gemma2 on two": ("pointer@gemma2", 2)}
SUMMARIES: Mapping[str, Callable[[Evidence], object]] = {
    "paths": lambda evidence: scores(evidence, "logit")["score"].to_numpy(),
    "roles": lambda evidence: of_group(evidence, "B", "pointed_object"),
    "binding": lambda evidence: summary(evidence)[list(MEASURES)].to_numpy(),
    "map": lambda evidence: gains_by_place(evidence, builtin_procedure("published").tracing, "swap_second"),
}
"""From the evidence of some kinds to what a rule weighs."""


@pytest.fixture(scope="module", params=sampled(PLACES))
def place(request: pytest.FixtureRequest) -> Place:
    return place_model(*PLACES[request.param])


def test_the_self_check_finds_the_same_anatomy(place: Place) -> None:
    assert place.on_device.loaded_model.anatomy == place.anatomy


def test_the_fingerprint_is_that_of_the_weights(place: Place) -> None:
    with place.fake_device:  # it is computed by threads
        assert hash_weights(place.on_device.loaded_model.model) == hash_weights(place.cpu.loaded_model.model)


def test_every_experiment_gives_the_numbers_of_the_cpu(place: Place) -> None:
    for kind, request in requests(place.cpu, place.circuit):
        (on_device, waits), on_cpu = place.measure(request), place.cpu.get(request)
        assert waits, kind  # numbers did come from the device
        assert not waits_in_loops(waits), kind
        assert list(on_device.rows.columns) == list(on_cpu.rows.columns)
        actual, expected = numbers(on_device), numbers(on_cpu)
        rounding = allowance(*expected.values())
        for name, column in expected.items():
            assert np.allclose(actual[name], column, rtol=0, atol=rounding, equal_nan=True), f"{kind}: {name}"
        if summed := SUMMARIES.get(kind.split()[0]):
            assert np.allclose(summed(on_device), summed(on_cpu), rtol=0, atol=rounding), kind
