"""Everything that a judged model goes through, on a device that refuses to be mixed with the CPU, and on two.

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
from rebinding.experiments.tracing.summary import restored
from rebinding.models.fingerprint import hash_weights
from rebinding.paper.procedure import given
from tests.accelerator.setup import Place, in_loops, numbers, placed, requests
from tests.close import allowance
from tests.everyday import sampled

PLACES = {"gemma3 on one device": ("pointer@gemma3", 1), "gemma2 on two": ("pointer@gemma2", 2)}
SUMMARIES: Mapping[str, Callable[[Evidence], object]] = {
    "paths": lambda found: scores(found, "logit")["score"].to_numpy(),
    "roles": lambda found: of_group(found, "B", "pointed_object"),
    "binding": lambda found: summary(found)[list(MEASURES)].to_numpy(),
    "map": lambda found: restored(found, given("published").tracing, "swap_second"),
}
"""From the evidence of some kinds to what a rule weighs."""


@pytest.fixture(scope="module", params=sampled(PLACES))
def place(request: pytest.FixtureRequest) -> Place:
    return placed(*PLACES[request.param])


def test_the_self_check_finds_the_same_anatomy(place: Place) -> None:
    assert place.there.loaded_model.anatomy == place.anatomy


def test_the_fingerprint_is_that_of_the_weights(place: Place) -> None:
    with place.fake_device:  # it is computed by threads
        assert hash_weights(place.there.loaded_model.model) == hash_weights(place.here.loaded_model.model)


def test_every_experiment_gives_the_numbers_of_the_cpu(place: Place) -> None:
    for what, request in requests(place.here, place.circuit):
        (found, waits), want = place.measured(request), place.here.get(request)
        assert waits, what  # numbers did come from the device
        assert not in_loops(waits), what
        assert list(found.rows.columns) == list(want.rows.columns)
        mine, theirs = numbers(found), numbers(want)
        rounding = allowance(*theirs.values())
        for name, column in theirs.items():
            assert np.allclose(mine[name], column, rtol=0, atol=rounding, equal_nan=True), f"{what}: {name}"
        if summed := SUMMARIES.get(what.split()[0]):
            assert np.allclose(summed(found), summed(want), rtol=0, atol=rounding), what
