"""Evidence and shards of workers equal those of this process, byte for byte, for every kind of request."""

from __future__ import annotations

import pandas as pd
import pytest

from rebinding.engines.distributed import DistributedEngine
from rebinding.evidence import Evidence
from rebinding.evidence.store import Store
from rebinding.experiments.table import EXPERIMENTS
from rebinding.experiments.workbench import Workbench
from rebinding.models import load
from tests.engines.kinds import KINDS, NAME, make_request
from tests.engines.local_pool import make_engine
from tests.everyday import sampled


@pytest.fixture(scope="module")
def local_bench(tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    """A workbench that computes and stores."""
    loaded_model = load(NAME, device="cpu")
    return Workbench(loaded_model, Store(tmp_path_factory.mktemp("here")))


@pytest.fixture(scope="module")
def engine() -> DistributedEngine:
    return make_engine(2)[0]


@pytest.fixture(scope="module")
def worker_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The store of the workers' evidence."""
    return Store(tmp_path_factory.mktemp("there"))


def measure(engine: DistributedEngine, name: str, store: Store | None) -> Evidence:
    """The evidence of one kind, as the result of a job."""

    def job() -> Evidence:
        session = engine.session(engine.loaded_model(NAME, dtype="float32", device="cpu", store=store), store)
        return session.source.get(make_request(name, session.prompts))

    return engine.finish(job)


def shards(store: Store) -> dict[str, bytes]:
    """The bytes of every shard."""
    return {f"{entry.experiment}/{entry.path.name}": entry.path.read_bytes() for entry in store.entries()}


def test_every_kind_has_a_request(local_bench: Workbench) -> None:
    kinds = {type(make_request(name, local_bench.prompts)) for name in KINDS}
    experiments = {entry.request for entry in EXPERIMENTS.values() if entry.makes == "evidence"}
    assert kinds == {kind for kind in experiments if kind.__module__.startswith("rebinding.")}


@pytest.mark.parametrize("name", sampled(KINDS, "answered", "paths", "ablation", "binding"))
def test_workers_and_this_process_keep_the_same_bytes(
    name: str, local_bench: Workbench, engine: DistributedEngine, worker_store: Store
) -> None:
    """It is the same computation, so the same bits; only the transport differs."""
    assert isinstance(local_bench.store, Store)
    local, before = local_bench.get(make_request(name, local_bench.prompts)), len(shards(worker_store))
    remote = measure(engine, name, worker_store)
    assert len(shards(worker_store)) > before
    assert shards(local_bench.store) == shards(worker_store)
    pd.testing.assert_frame_equal(local.rows, remote.rows, check_exact=True)
    assert local.settings == remote.settings


@pytest.mark.parametrize("name", sampled(["paths", "answered", "ablation"], "answered"))
def test_evidence_is_equal_without_a_store(name: str, local_bench: Workbench) -> None:
    remote = measure(make_engine()[0], name, None)
    pd.testing.assert_frame_equal(
        local_bench.get(make_request(name, local_bench.prompts)).rows, remote.rows, check_exact=True
    )
