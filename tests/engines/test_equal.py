"""Evidence of workers is that of this process, byte for byte, for every kind of request; so is all that is kept."""

from __future__ import annotations

import pandas as pd
import pytest

from rebinding.engines.distributed import DistributedEngine
from rebinding.evidence import Evidence
from rebinding.evidence.store import Store
from rebinding.experiments.workbench import MEASURES, Workbench
from rebinding.models import load
from tests.engines.kinds import KINDS, NAME, made
from tests.engines.nearby import engine
from tests.everyday import sampled


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    """A bench that computes, and keeps."""
    loaded_model = load(NAME, device="cpu")
    shelf = Store(tmp_path_factory.mktemp("here")).shelf(loaded_model=loaded_model.fingerprint, dtype="float32")
    return Workbench(loaded_model, shelf)


@pytest.fixture(scope="module")
def there() -> DistributedEngine:
    return engine(2)[0]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Where evidence of workers is kept."""
    return Store(tmp_path_factory.mktemp("there"))


def measured(how: DistributedEngine, name: str, store: Store | None) -> Evidence:
    """One request of a kind, as a job asks for it."""

    def job() -> Evidence:
        session = how.session(how.loaded_model(NAME, dtype="float32", device="cpu", store=store), store)
        return session.source.get(made(name, session.prompts))

    return how.finish(job)


def shards(store: Store) -> dict[str, bytes]:
    """Every shard, as it lies there."""
    return {f"{one.experiment}/{one.path.name}": one.path.read_bytes() for one in store.entries()}


def test_no_kind_is_forgotten(here: Workbench) -> None:
    kinds = {type(made(name, here.prompts)) for name in KINDS}
    assert kinds == {one for one in MEASURES if one.__module__.startswith("rebinding.")}


@pytest.mark.parametrize("name", sampled(KINDS, "answered", "paths", "ablation", "binding"))
def test_workers_and_this_process_keep_the_same_bytes(
    name: str, here: Workbench, there: DistributedEngine, kept: Store
) -> None:
    """The very same computation twice, so to the bit; only the way home differs."""
    assert here.shelf is not None
    own, before = here.get(made(name, here.prompts)), len(shards(kept))
    theirs = measured(there, name, kept)
    assert len(shards(kept)) > before
    assert shards(here.shelf.store) == shards(kept)
    pd.testing.assert_frame_equal(own.rows, theirs.rows, check_exact=True)
    assert own.settings == theirs.settings


@pytest.mark.parametrize("name", sampled(["paths", "answered", "ablation"], "answered"))
def test_without_a_store_it_is_the_same(name: str, here: Workbench) -> None:
    theirs = measured(engine()[0], name, None)
    pd.testing.assert_frame_equal(here.get(made(name, here.prompts)).rows, theirs.rows, check_exact=True)
