"""Activations that experiments share: exact on disk, computed once, and found by whoever needs the same again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from rebinding.evidence.activations import Activations
from rebinding.evidence.store import Store
from rebinding.experiments.binding import measure as binding_measure
from rebinding.experiments.binding.request import request_vectors
from rebinding.experiments.circuit import measure as circuit_measure
from rebinding.experiments.circuit.request import request_ablation, request_means
from rebinding.experiments.prompts import DIRECTIONS_ID
from rebinding.experiments.workbench import Workbench
from rebinding.models import LoadedModel, load
from rebinding.paper.circuit import Circuit, Head
from rebinding.planted import build
from rebinding.task.designs import DesignName

TENSORS = {
    "doubles": torch.randn(3, 4, dtype=torch.float64),
    "short": torch.randn(5).to(torch.bfloat16),
    "turned": torch.arange(6.0).view(2, 3).T,
    "number": torch.tensor(1.5),
}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture(scope="module")
def loaded_model() -> LoadedModel:
    return load("planted:pointer")


def bench(loaded_model: LoadedModel, store: Store | None) -> Workbench:
    return Workbench(
        loaded_model, store and store.shelf(loaded_model=loaded_model.fingerprint, dtype=loaded_model.dtype)
    )


def test_bit_for_bit_through_a_file(store: Store) -> None:
    store.put("means", "key", Activations(TENSORS))
    found = store.get(Activations, "means", "key")
    assert found is not None
    assert found.tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert torch.equal(found.tensors[name], tensor)
    assert [(one.experiment, one.path.suffix) for one in store.entries()] == [("means", ".safetensors")]


@pytest.mark.slow
def test_means_serve_another_experiment_and_another_run(
    loaded_model: LoadedModel, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More prompts are other evidence, on the same means. Without the store, they are computed again, the same."""
    heads = Circuit(build("pointer").circuit)

    def ablated(where: Store | None, n: int) -> object:
        own = bench(loaded_model, where)
        drawn = own.prompts.design("published")
        asked = request_ablation(own.prompts, heads, drawn, "counterbalanced", n=n, beside="heads")
        return own.get(asked).rows["margin"].tolist()

    alone, counted = ablated(None, 4), []
    mean_z = circuit_measure.mean_z
    monkeypatch.setattr(circuit_measure, "mean_z", lambda *given: counted.append(1) or mean_z(*given))
    ablated(store, 3)
    assert counted == [1]
    assert ablated(store, 4) == alone
    assert counted == [1], "means were found in the store"
    assert ablated(None, 4) == alone
    assert counted == [1, 1]


def test_directions_serve_another_run(loaded_model: LoadedModel, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of other heads, prompts or designs are others."""
    heads = Circuit(build("pointer").circuit).group("B")
    counted, measure = [], binding_measure.measure_directions
    monkeypatch.setattr(binding_measure, "measure_directions", lambda *g, **m: counted.append(1) or measure(*g, **m))

    def measured(name: DesignName, some: tuple[Head, ...], n: int) -> Mapping[str, torch.Tensor]:
        own = bench(loaded_model, store)
        return own.tensors(request_vectors(own.prompts, name, some, range(DIRECTIONS_ID, DIRECTIONS_ID + n)))

    first, again = measured("published", heads, 6), measured("published", heads, 6)
    assert counted == [1]
    assert all(torch.equal(again[name], first[name]) for name in ("q", "k"))
    cases: tuple[tuple[DesignName, tuple[Head, ...], int], ...] = (
        ("counterbalanced", heads, 6),
        ("published", heads[:1], 6),
        ("published", heads, 7),
    )
    for name, some, n in cases:
        other = measured(name, some, n)
        assert other["q"].shape != first["q"].shape or not torch.equal(other["q"], first["q"])
    assert len(counted) == 4


def test_within_a_bench_nothing_is_read_twice(loaded_model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    own, counted = bench(loaded_model, None), []
    monkeypatch.setattr(circuit_measure, "mean_z", lambda *given: counted.append(1) or [torch.ones(1)])
    for design in ("published", "published", "counterbalanced"):
        own.tensors(request_means(own.prompts, own.prompts.design("published"), design))
    assert len(counted) == 2
