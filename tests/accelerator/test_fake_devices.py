"""The path of a judged model on fake devices that refuse to mix with the CPU: its numbers, its waits, its mistakes.

The numbers are those of the CPU: the pretended device computes with the same kernels, so what a run brings back from
the wrong place, or before it was written (such memory holds NaN), is seen.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from rebinding.cost.fake_device import MixedDevices
from rebinding.evidence import Evidence
from rebinding.experiments import tokens
from rebinding.experiments.binding.summary import MEASURES, summary
from rebinding.experiments.paths.summary import scores
from rebinding.experiments.roles.summary import of_group
from rebinding.experiments.tracing.summary import gains_by_place
from rebinding.models.loaded_model import hash_weights
from rebinding.paper.procedure import builtin_procedure
from rebinding.surgery import batch, mean_ablated, recorder
from rebinding.surgery.torch_surgeon import TorchSurgeon
from tests.accelerator.cpu_backed import Wait
from tests.accelerator.setup import Place, numbers, place_model, requests, waits_in_loops
from tests.close import allowance
from tests.everyday import sampled

PLACES = {"gemma2 on two": ("pointer@gemma2", 2), "gemma3 on one device": ("pointer@gemma3", 1)}
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


# How often a program waits for the device: a stated number a block, however many prompts are in it

KINDS = ("paths A", "ablation groups", "roles pointer", "binding isolated", "diagnostic")
MAXIMUM = {
    # flags of what moved, a trip a run; and the columns of the table
    "paths A": 7,
    # one table of the circuits and one of the full model
    "ablation groups": 2,
    # of each of five groups: patterns by layer of both prompts, and the logits; logits of both prompts before
    "roles pointer": 23,
    # attention by layer and logits, before and after; the check of keys
    "binding isolated": 7,
    # residuals of both prompts by layer; of each of two places the flags of two runs, and logits
    "diagnostic": 24,
}
"""Waits for a block on a Gemma 2 of seven layers, besides those of transformers' masks."""


@pytest.fixture(scope="module")
def one_device() -> Place:
    return place_model("pointer@gemma2", 1)


def counted(waits: list[Wait]) -> Counter[str]:
    """Waits by the function that they happen in; those of the masks, two for each of two kinds a pass, apart."""
    return Counter(wait.within[0] for wait in waits if wait.within[0] != "_pass")


@pytest.mark.slow
def test_waits_are_bounded_and_do_not_grow_with_prompts(one_device: Place) -> None:
    small, large = (dict(requests(one_device.cpu, one_device.circuit, n)) for n in (2, 4))
    one_device.measure(small["binding isolated"])  # directions are measured once, for all
    for kind in KINDS:
        two, four = (counted(one_device.measure(by_kind[kind])[1]) for by_kind in (small, large))
        assert two == four, kind
        assert two.total() <= MAXIMUM[kind], (kind, two)


def test_a_pass_waits_for_the_masks_alone(one_device: Place) -> None:
    """Two questions for each kind of mask: Gemma 2 has two kinds, and a recording of several prompts two passes."""
    _, waits = one_device.measure(dict(requests(one_device.cpu, one_device.circuit, 3))["ability"])
    assert Counter(wait.within[0] for wait in waits)["_pass"] <= 2 * 2


# A device mistake of every kind, made on purpose, is caught


@pytest.fixture(scope="module")
def two_devices() -> Place:
    return place_model(*PLACES["gemma2 on two"])


def measure(place: Place, kind: str) -> Any:
    """One kind of request, measured afresh: nothing is remembered from before."""
    model = place.on_device.loaded_model
    place.on_device.__dict__["surgeon"] = TorchSurgeon(model.model, model.anatomy)
    return place.measure(dict(requests(place.cpu, place.circuit))[kind])


def spoil(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], right: str, wrong: str) -> None:
    """Put a function with one place of its text changed into every module that has it."""
    text = textwrap.dedent(inspect.getsource(function))
    assert text.count(right) == 1
    names: dict[str, Any] = {}
    home = sys.modules[function.__module__]
    exec(
        compile("from __future__ import annotations\n" + text.replace(right, wrong), "spoiled", "exec"),
        vars(home),
        names,
    )
    for module in [module for name, module in sys.modules.items() if name.startswith("rebinding.")]:
        if getattr(module, function.__name__, None) is function:
            monkeypatch.setattr(module, function.__name__, names[function.__name__])


@pytest.mark.slow
def test_a_table_left_on_the_cpu(two_devices: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    measure(two_devices, "ability")
    spoil(monkeypatch, tokens.attention_on, "keys[rows].to(pattern.device)", "keys[rows]")
    with pytest.raises(MixedDevices, match=r"gather.default mixes cpu and meta:.*: .* move one to where the other is"):
        measure(two_devices, "binding isolated")


def test_a_factory_without_a_device(two_devices: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, mean_ablated._mask, "dtype=torch.bool, device=hidden.device", "dtype=torch.bool")
    with pytest.raises(MixedDevices, match="mixes cpu and meta"):
        measure(two_devices, "ablation heads")


def test_a_residual_left_with_the_layer_below(two_devices: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, recorder.record, '["resid"][layer].to(keys.device)', '["resid"][layer]')
    with pytest.raises(MixedDevices, match="mixes meta:0 and meta:1"):
        measure(two_devices, "paths A")


def test_waiting_in_every_layer(two_devices: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    _, waits = measure(two_devices, "binding isolated")
    assert not waits_in_loops(waits)
    spoil(monkeypatch, batch.rewritten, "* seen.abs().max()", "* float(seen.abs().max())")
    _, waits = measure(two_devices, "binding isolated")
    assert {wait.operation for wait in waits_in_loops(waits)} == {"aten._local_scalar_dense.default"}
