"""Activations that experiments share: computed once, and reused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from rebinding.evidence.store import Store
from rebinding.experiments import ablation
from rebinding.experiments.ablation import request_means
from rebinding.experiments.binding import measure as binding_measure
from rebinding.experiments.binding.request import request_vectors
from rebinding.experiments.circuit.request import request_ablation
from rebinding.experiments.prompts import DIRECTIONS_ID
from rebinding.experiments.workbench import Workbench
from rebinding.models import LoadedModel, load
from rebinding.paper.circuit import Circuit, Head
from rebinding.planted import build
from rebinding.task.designs import DesignName


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture(scope="module")
def loaded_model() -> LoadedModel:
    return load("planted:pointer")


def bench(loaded_model: LoadedModel, store: Store | None) -> Workbench:
    return Workbench(loaded_model, store)


@pytest.mark.slow
def test_means_serve_another_experiment_and_another_run(
    loaded_model: LoadedModel, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More prompts are other evidence with the same means. Without the store equal means are computed again."""
    heads = Circuit(build("pointer").circuit)

    def ablate(store: Store | None, n: int) -> object:
        workbench = bench(loaded_model, store)
        design = workbench.prompts.design("published")
        request = request_ablation(workbench.prompts, heads, design, "counterbalanced", n=n, comparison="heads")
        return workbench.get(request).rows["margin"].tolist()

    without_store, calls = ablate(None, 4), []
    mean_z = ablation.mean_z
    monkeypatch.setattr(ablation, "mean_z", lambda *args: calls.append(1) or mean_z(*args))
    ablate(store, 3)
    assert calls == [1]
    assert ablate(store, 4) == without_store
    assert calls == [1], "the means are read from the store"
    assert ablate(None, 4) == without_store
    assert calls == [1, 1]


def test_directions_serve_another_run(loaded_model: LoadedModel, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other heads, prompts or designs have other directions."""
    heads = Circuit(build("pointer").circuit).group("B")
    calls, measure = [], binding_measure.measure_directions
    monkeypatch.setattr(binding_measure, "measure_directions", lambda *g, **m: calls.append(1) or measure(*g, **m))

    def directions(name: DesignName, heads: tuple[Head, ...], n: int) -> Mapping[str, torch.Tensor]:
        workbench = bench(loaded_model, store)
        ids = range(DIRECTIONS_ID, DIRECTIONS_ID + n)
        return workbench.tensors(request_vectors(workbench.prompts, name, heads, ids))

    first, second = directions("published", heads, 6), directions("published", heads, 6)
    assert calls == [1]
    assert all(torch.equal(second[name], first[name]) for name in ("q", "k"))
    cases: tuple[tuple[DesignName, tuple[Head, ...], int], ...] = (
        ("counterbalanced", heads, 6),
        ("published", heads[:1], 6),
        ("published", heads, 7),
    )
    for name, subset, n in cases:
        changed = directions(name, subset, n)
        assert changed["q"].shape != first["q"].shape or not torch.equal(changed["q"], first["q"])
    assert len(calls) == 4


def test_a_workbench_computes_tensors_once(loaded_model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    workbench, calls = bench(loaded_model, None), []
    monkeypatch.setattr(ablation, "mean_z", lambda *args: calls.append(1) or [torch.ones(1)])
    for design in ("published", "published", "counterbalanced"):
        workbench.tensors(request_means(workbench.prompts, workbench.prompts.design("published"), design))
    assert len(calls) == 2
