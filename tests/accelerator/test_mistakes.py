"""A device mistake of every kind, made on purpose, is caught; so is waiting for the device in every layer."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from rebinding.cost.fake_device import MixedDevices
from rebinding.experiments import tokens
from rebinding.surgery import batch, mean_ablated, recorder
from rebinding.surgery.torch_surgeon import TorchSurgeon
from tests.accelerator.setup import Place, place_model, requests, waits_in_loops


@pytest.fixture(scope="module")
def place() -> Place:
    return place_model("pointer@gemma2", 2)


def measure(place: Place, kind: str) -> Any:
    """One kind of request, measured afresh: nothing is remembered from before."""
    place.on_device.__dict__["surgeon"] = TorchSurgeon(
        place.on_device.loaded_model.model, place.on_device.loaded_model.anatomy
    )
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
def test_a_table_left_on_the_cpu(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    measure(place, "ability")
    spoil(monkeypatch, tokens.attention_on, "keys[rows].to(pattern.device)", "keys[rows]")
    with pytest.raises(MixedDevices, match=r"gather.default mixes cpu and meta:.*: .* move one to where the other is"):
        measure(place, "binding isolated")


def test_a_factory_without_a_device(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, mean_ablated._mask, "dtype=torch.bool, device=hidden.device", "dtype=torch.bool")
    with pytest.raises(MixedDevices, match="mixes cpu and meta"):
        measure(place, "ablation heads")


def test_a_residual_left_with_the_layer_below(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, recorder.record, '["resid"][layer].to(keys.device)', '["resid"][layer]')
    with pytest.raises(MixedDevices, match="mixes meta:0 and meta:1"):
        measure(place, "paths A")


def test_waiting_in_every_layer(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    _, waits = measure(place, "binding isolated")
    assert not waits_in_loops(waits)
    spoil(monkeypatch, batch.rewritten, "* seen.abs().max()", "* float(seen.abs().max())")
    _, waits = measure(place, "binding isolated")
    assert {wait.operation for wait in waits_in_loops(waits)} == {"aten._local_scalar_dense.default"}
