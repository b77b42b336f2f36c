"""Shards are found by what made them, whole or not at all, and a damaged one is made anew."""

from __future__ import annotations

import threading
from pathlib import Path

import pandas as pd
import pytest
import torch

from rebinding.evidence import Evidence
from rebinding.evidence.activations import Activations
from rebinding.evidence.store import Note, Store, StoreWarning, default_root


def shard(value: float = 1.0) -> Evidence:
    return Evidence("toy", pd.DataFrame({"id": [1, 2], "value": [value, 2.0]}), {"mode": "m", "layers": [0, 1]})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_nothing_else_lies_about(store: Store) -> None:
    store.put("toy", "key", shard())
    assert sorted(path.name for path in (store.root / "toy").iterdir()) == ["key.parquet", "key.sha256"]


CONTENTS: dict[str, tuple[Evidence | Activations | Note, Evidence | Activations | Note]] = {
    "evidence": (shard(1.0), shard(9.0)),
    "activations": (Activations({"a": torch.ones(2)}), Activations({"a": torch.zeros(2)})),
    "notes": (Note("mine"), Note("theirs")),
}


@pytest.mark.parametrize("kind", CONTENTS)
def test_a_shard_that_came_with_its_checksum_is_not_taken_for_the_right_one(store: Store, kind: str) -> None:
    """It says inside where it belongs; so nobody reads one piece of evidence for another."""
    right, other = CONTENTS[kind]
    store.put("toy", "key", right)
    store.put("toy", "other", other)
    place, strange = (store.path(type(right), "toy", key) for key in ("key", "other"))
    for here, there in ((place, strange), (place.with_suffix(".sha256"), strange.with_suffix(".sha256"))):
        here.write_bytes(there.read_bytes())
    assert not store.holds(type(right), "toy", "key")
    with pytest.warns(StoreWarning, match="says that it is 'toy/other'"):
        assert store.get(type(right), "toy", "key") is None
    with pytest.warns(StoreWarning) as told:
        store.remember(type(right), "toy", "key", lambda: right)
    assert len(told) == 1
    assert store.holds(type(right), "toy", "key")


@pytest.mark.parametrize("kind", CONTENTS)
def test_content_survives_a_journey_with_its_address(store: Store, kind: str) -> None:
    assert store.get(type(CONTENTS[kind][0]), "toy", "key") is None
    for content in CONTENTS[kind]:
        store.put("toy", "key", content)
        again = store.get(type(content), "toy", "key")
        assert type(again) is type(content)
        if isinstance(again, Evidence) and isinstance(content, Evidence):
            pd.testing.assert_frame_equal(again.rows, content.rows)
            assert (again.experiment, again.settings) == (content.experiment, content.settings)
        elif isinstance(again, Activations) and isinstance(content, Activations):
            assert again.tensors.keys() == content.tensors.keys()
            assert all(torch.equal(again.tensors[name], content.tensors[name]) for name in again.tensors)
        else:
            assert again == content


def test_a_failed_write_leaves_the_old_shard(store: Store) -> None:
    store.put("toy", "key", shard())
    unsaveable = Evidence("toy", pd.DataFrame({"value": [object()]}), {})
    with pytest.raises(Exception, match="object"):
        store.put("toy", "key", unsaveable)
    found = store.get(Evidence, "toy", "key")
    assert found is not None
    assert found.rows["value"].tolist() == [1.0, 2.0]
    assert not list(store.root.rglob("*.part"))


def test_who_comes_second_waits_and_reads(store: Store) -> None:
    """Two at once compute once."""
    computed = []
    first_is_in, go_on = threading.Event(), threading.Event()

    def slow() -> Evidence:
        computed.append("first")
        first_is_in.set()
        assert go_on.wait(10)
        return shard(7.0)

    def never() -> Evidence:
        computed.append("second")
        return shard(8.0)

    results: dict[str, Evidence] = {}
    first = threading.Thread(target=lambda: results.update(a=store.remember(Evidence, "toy", "key", slow)))
    second = threading.Thread(target=lambda: results.update(b=store.remember(Evidence, "toy", "key", never)))
    first.start()
    assert first_is_in.wait(10)
    second.start()
    go_on.set()
    first.join()
    second.join()
    assert computed == ["first"]
    assert results["a"].rows["value"].tolist() == results["b"].rows["value"].tolist() == [7.0, 2.0]


def test_list_and_clear(store: Store) -> None:
    for experiment, key in (("toy", "b"), ("toy", "a"), ("other", "c")):
        store.put(experiment, key, shard())
    (store.root / "notes.txt").write_text("mine")
    entries = list(store.entries())
    assert [(one.experiment, one.key) for one in entries] == [("other", "c"), ("toy", "a"), ("toy", "b")]
    assert all(one.bytes == one.path.stat().st_size > 0 for one in entries)
    assert store.clear("toy") == 2
    assert [one.experiment for one in store.entries()] == ["other"]
    assert store.clear() == 1
    assert not list(store.root.rglob("*.sha256"))
    assert (store.root / "notes.txt").exists()


def test_an_empty_store_has_no_entries(store: Store) -> None:
    assert list(store.entries()) == []
    assert store.clear() == 0


def test_every_part_of_an_address_counts(store: Store) -> None:
    def key(loaded_model: str = "s", dtype: str = "float32", mode: str = "m", content: object = (1, 2)) -> str:
        return (
            store.shelf(loaded_model=loaded_model, dtype=dtype)
            .of("rebinding.task.boxes", settings={"mode": mode})
            .key(content)
        )

    keys = [key(), key(loaded_model="t"), key(dtype="bfloat16"), key(mode="n"), key(content=(2, 1))]
    assert len(set(keys)) == len(keys)
    assert key() == keys[0]
    assert (
        store.shelf(loaded_model="s", dtype="float32").of("rebinding.task.words", settings={"mode": "m"}).key((1, 2))
        != keys[0]
    )


def test_the_default_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REBINDING_STORE", raising=False)
    assert default_root() == Path(".rebinding")
    monkeypatch.setenv("REBINDING_STORE", "elsewhere")
    assert default_root() == Path("elsewhere")
