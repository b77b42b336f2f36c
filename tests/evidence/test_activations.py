"""Activations that experiments share: exact on disk, computed once, and found by whoever needs the same again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from rebinding.evidence.activations import Activations
from rebinding.evidence.store import Store, StoreWarning
from rebinding.paper.circuit import Circuit, Head
from rebinding.planted import build
from rebinding.study import Bench, binding, circuit
from rebinding.study.bench import DIRECTIONS
from rebinding.subjects import Subject, load
from rebinding.world.designs import DesignName

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
def subject() -> Subject:
    return load("planted:pointer")


def bench(subject: Subject, store: Store | None) -> Bench:
    return Bench(subject, store and store.shelf(subject=subject.fingerprint, dtype=subject.dtype))


def test_bit_for_bit_through_a_file(store: Store) -> None:
    store.put("means", "key", Activations(TENSORS))
    found = store.get(Activations, "means", "key")
    assert found is not None
    assert found.tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert torch.equal(found.tensors[name], tensor)
    assert [(one.experiment, one.path.suffix) for one in store.entries()] == [("means", ".safetensors")]


def test_a_damaged_file_is_computed_again(store: Store) -> None:
    store.put("means", "key", Activations(TENSORS))
    path = store.path(Activations, "means", "key")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.warns(StoreWarning, match="damaged"):
        found = store.remember(Activations, "means", "key", lambda: Activations({"new": torch.ones(2)}))
    assert list(found.tensors) == ["new"]
    assert store.clear() == 1


def test_means_serve_another_experiment_and_another_run(
    subject: Subject, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More prompts are other evidence, on the same means. Without the store, they are computed again, the same."""
    heads = Circuit(build("pointer").circuit)

    def ablated(where: Store | None, n: int) -> object:
        own = bench(subject, where)
        drawn = own.design("published")
        asked = circuit.ablated(own, heads, drawn, "counterbalanced", n=n, beside="heads")
        return own.measured(asked).rows["margin"].tolist()

    alone, counted = ablated(None, 4), []
    mean_z = circuit.mean_z
    monkeypatch.setattr(circuit, "mean_z", lambda *given: counted.append(1) or mean_z(*given))
    ablated(store, 3)
    assert counted == [1]
    assert ablated(store, 4) == alone
    assert counted == [1], "means were found in the store"
    assert ablated(None, 4) == alone
    assert counted == [1, 1]


def test_directions_serve_another_run(subject: Subject, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of other heads, prompts or designs are others."""
    heads = Circuit(build("pointer").circuit).group("B")
    counted, measure = [], binding.measure_directions
    monkeypatch.setattr(binding, "measure_directions", lambda *g, **m: counted.append(1) or measure(*g, **m))

    def measured(name: DesignName, some: tuple[Head, ...], n: int) -> Mapping[str, torch.Tensor]:
        own = bench(subject, store)
        return own.averaged(binding.vectors(own, name, some, range(DIRECTIONS, DIRECTIONS + n)))

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


def test_within_a_bench_nothing_is_read_twice(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    own, counted = bench(subject, None), []
    monkeypatch.setattr(circuit, "mean_z", lambda *given: counted.append(1) or [torch.ones(1)])
    for design in ("published", "published", "counterbalanced"):
        own.averaged(circuit.means_of(own, own.design("published"), design))
    assert len(counted) == 2
