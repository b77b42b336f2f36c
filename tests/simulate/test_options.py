"""Options of simulated runs that contradict each other, or would be ignored, are refused before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.dry_runs import Simulation, check_simulation, simulation_of
from rebinding.study.options import Options


def options_of(simulate: tuple[str, ...] = ("paper",), **values: Any) -> Options:
    """The options of a simulated run; `every_token=True` stands for `--every-token`."""
    return Options(simulate=simulate, **values)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"runs": 0}, "--runs 0: give 1 or more"),
        ({"seed": -1}, "--seed -1: give 0 or more"),
        ({"spread": (2.0, 0.0)}, "--spread 0: give a finite factor above 0"),
        ({"spread": (float("inf"),)}, "--spread inf: give a finite factor above 0"),
        ({"circuit": "discovered"}, "--circuit discovered and --simulate: the paper's own circuit is simulated"),
        ({"device": "cuda"}, "--device cuda and --simulate: no model runs"),
        ({"dtype": "float32"}, "--dtype float32 and --simulate"),
        ({"remote": True}, "--remote and --simulate"),
        ({"engine": "ray"}, "--engine ray and --simulate: nothing is computed by workers"),
        ({"workers": 2}, "--workers 2 and --simulate"),
        ({"store": "there"}, "--store there and --simulate: simulated evidence is not saved"),
        ({"every_token": True}, "--every-token and --simulate"),
        ({"strict_verdicts": True}, "--strict-verdicts and --simulate"),
        ({"planted": "all"}, "--planted all and --simulate: only models of the paper"),
        ({"model": ("gemma2-9b", "planted:pointer")}, "--model 'planted:pointer' and --simulate"),
        ({"model": ("gemma2-9b=folder",)}, "gemma2-9b, gemma3-12b, llama3.2-3b, llama3.1-8b"),
        ({"simulate": (), "runs": 3}, "--runs belongs to simulated runs"),
        ({"simulate": ("rival",), "spread": (2.0,)}, "--spread is about the world in which the paper is right"),
        ({"simulate": (), "seed": 0}, "--seed belongs to simulated runs"),
        ({"simulate": (), "spread": (2.0,)}, "--spread belongs to simulated runs"),
    ],
    ids=str,
)
def test_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(pytest.UsageError) as refused:
        check_simulation(options_of(**options))
    assert message in str(refused.value)


@pytest.mark.parametrize("options", [{}, {"model": ("gemma2-9b",), "runs": 3, "seed": 4}, {"simulate": ()}], ids=str)
def test_valid_options_are_accepted(options: dict[str, Any]) -> None:
    check_simulation(options_of(**options))


def test_worlds_have_an_order_and_samples_have_seeds() -> None:
    simulation = simulation_of(options_of(simulate=("rival", "paper", "rival"), runs=3, seed=5))
    assert simulation == Simulation(("paper", "rival"), 3, 5)
    samples = [(run.world.name, run.seed) for run in simulation.samples("rival", "gemma2-9b")]
    assert samples == [("rival", seed) for seed in (5, 6, 7)]


def test_a_factor_multiplies_every_declared_spread() -> None:
    """What follows from printed numbers (how far margins spread) stays as it is."""
    simulation = simulation_of(options_of(spread=(2.0,), runs=60))
    default = next(simulation.samples("paper", "gemma2-9b")).world
    (wide, *narrower) = [run.world for run in simulation.samples_at_spread(2.0, "gemma2-9b")]
    assert wide.spreads == {name: 2 * value for name, value in default.spreads.items()}
    assert wide.means == default.means
    assert len(narrower) == 49
