"""The store: what is in it is complete, has its address inside, and belongs to the model that it was made for."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pandas as pd
import pytest
import torch

from rebinding.evidence import Evidence
from rebinding.evidence.certificates import certificate_file, find_certificate, save_certificate
from rebinding.evidence.shards import put_in_place, write_text
from rebinding.evidence.sources import code_hash
from rebinding.evidence.store import Activations, Note, Store, StoreWarning, cache_key, default_root
from rebinding.paper.certificate import installed_versions
from tests.paper.certificates import make_certificate


def shard(value: float = 1.0) -> Evidence:
    return Evidence("toy", pd.DataFrame({"id": [1, 2], "value": [value, 2.0]}), {"mode": "m", "layers": [0, 1]})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_a_shard_is_two_files(store: Store) -> None:
    store.put("toy", "key", shard())
    assert sorted(path.name for path in (store.root / "toy").iterdir()) == ["key.parquet", "key.sha256"]


CONTENTS: dict[str, tuple[Evidence | Activations | Note, Evidence | Activations | Note]] = {
    "evidence": (shard(1.0), shard(9.0)),
    "activations": (Activations({"a": torch.ones(2)}), Activations({"a": torch.zeros(2)})),
    "notes": (Note("first"), Note("second")),
}


@pytest.mark.parametrize("kind", CONTENTS)
def test_a_shard_copied_with_its_checksum_is_damaged(store: Store, kind: str) -> None:
    """It has another address inside, so no evidence is read in place of another."""
    right, wrong = CONTENTS[kind]
    store.put("toy", "key", right)
    store.put("toy", "other", wrong)
    target, source = (store.path(type(right), "toy", key) for key in ("key", "other"))
    for target_file, copied in ((target, source), (target.with_suffix(".sha256"), source.with_suffix(".sha256"))):
        target_file.write_bytes(copied.read_bytes())
    assert not store.holds(type(right), "toy", "key")
    with pytest.warns(StoreWarning, match="address inside it is 'toy/other'"):
        assert store.get(type(right), "toy", "key") is None
    with pytest.warns(StoreWarning) as warning_list:
        store.remember(type(right), "toy", "key", lambda: right)
    assert len(warning_list) == 1
    assert store.holds(type(right), "toy", "key")


@pytest.mark.parametrize("kind", CONTENTS)
def test_content_survives_a_round_trip(store: Store, kind: str) -> None:
    assert store.get(type(CONTENTS[kind][0]), "toy", "key") is None
    for content in CONTENTS[kind]:
        store.put("toy", "key", content)
        loaded = store.get(type(content), "toy", "key")
        assert type(loaded) is type(content)
        if isinstance(loaded, Evidence) and isinstance(content, Evidence):
            pd.testing.assert_frame_equal(loaded.rows, content.rows)
            assert (loaded.experiment, loaded.settings) == (content.experiment, content.settings)
        elif isinstance(loaded, Activations) and isinstance(content, Activations):
            assert loaded.tensors.keys() == content.tensors.keys()
            assert all(torch.equal(loaded.tensors[name], content.tensors[name]) for name in loaded.tensors)
        else:
            assert loaded == content


def test_a_failed_write_leaves_the_old_shard(store: Store) -> None:
    store.put("toy", "key", shard())
    unsaveable = Evidence("toy", pd.DataFrame({"value": [object()]}), {})
    with pytest.raises(Exception, match="object"):
        store.put("toy", "key", unsaveable)
    stored = store.get(Evidence, "toy", "key")
    assert stored is not None
    assert stored.rows["value"].tolist() == [1.0, 2.0]
    assert not list(store.root.rglob("*.part"))


def test_a_second_thread_waits_and_reads(store: Store) -> None:
    """Two threads at the same time compute once."""
    computed = []
    first_is_in, go_on = threading.Event(), threading.Event()

    def slow() -> Evidence:
        computed.append("first")
        first_is_in.set()
        assert go_on.wait(10)
        return shard(7.0)

    def refuse_call() -> Evidence:
        computed.append("second")
        return shard(8.0)

    results: dict[str, Evidence] = {}
    first = threading.Thread(target=lambda: results.update(a=store.remember(Evidence, "toy", "key", slow)))
    second = threading.Thread(target=lambda: results.update(b=store.remember(Evidence, "toy", "key", refuse_call)))
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
    assert [(entry.experiment, entry.key) for entry in entries] == [("other", "c"), ("toy", "a"), ("toy", "b")]
    assert all(entry.bytes == entry.path.stat().st_size > 0 for entry in entries)
    assert store.clear("toy") == 2
    assert [entry.experiment for entry in store.entries()] == ["other"]
    assert store.clear() == 1
    assert not list(store.root.rglob("*.sha256"))
    assert (store.root / "notes.txt").exists()


def test_an_empty_store_has_no_entries(store: Store) -> None:
    assert list(store.entries()) == []
    assert store.clear() == 0


def test_every_part_of_an_address_counts() -> None:
    def key(
        fingerprint: str = "s", dtype: str = "float32", module: str = "rebinding.task.boxes", content: object = (1, 2)
    ) -> str:
        return cache_key(fingerprint, dtype, code_hash(module), content)

    keys = [
        key(), key(fingerprint="t"), key(dtype="bfloat16"), key(module="rebinding.task.words"), key(content=(2, 1)),
    ]  # fmt: skip
    assert len(set(keys)) == len(keys)
    assert key() == keys[0]


def test_the_default_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REBINDING_STORE", raising=False)
    assert default_root() == Path(".rebinding")
    monkeypatch.setenv("REBINDING_STORE", "elsewhere")
    assert default_root() == Path("elsewhere")


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    files = [tmp_path / "a.parquet", tmp_path / "b.json", tmp_path / "c.txt"]
    for path in files:
        path.write_text("old")
    return files


def test_all_files_are_put_in_place(paths: list[Path]) -> None:
    put_in_place({path: lambda part: write_text(part, "new") for path in paths})
    assert [path.read_text() for path in paths] == ["new"] * 3
    assert sorted(paths[0].parent.iterdir()) == sorted(paths)


def test_none_is_put_in_place_where_one_cannot_be_written(paths: list[Path]) -> None:
    def write_half(part: Path) -> None:
        part.write_text("ne")
        raise OSError(errno.ENOSPC, "No space left on device")

    writers = dict.fromkeys(paths, lambda part: write_text(part, "new"))
    with pytest.raises(OSError, match="No space left") as excinfo:
        put_in_place({**writers, paths[1]: write_half})
    assert excinfo.value.filename == str(paths[1])
    assert [path.read_text() for path in paths] == ["old"] * 3
    assert sorted(paths[0].parent.iterdir()) == sorted(paths)


FINGERPRINT = "0123abcd" * 8


def save(root: Path, **versions: str) -> Path:
    path = certificate_file(root, FINGERPRINT)
    save_certificate(make_certificate(versions=installed_versions() | versions), path)
    return path


def test_a_saved_certificate_is_found(tmp_path: Path) -> None:
    assert find_certificate(tmp_path, FINGERPRINT, "float32") is None
    assert save(tmp_path) == tmp_path / "certificates" / "0123abcd0123.json"
    assert find_certificate(tmp_path, FINGERPRINT, "float32") == make_certificate()
    assert list(Store(tmp_path).entries()) == []  # it is no evidence


def test_another_model_or_precision_is_not_certified_by_it(tmp_path: Path) -> None:
    save(tmp_path)
    assert find_certificate(tmp_path, FINGERPRINT, "bfloat16") is None
    assert find_certificate(tmp_path, FINGERPRINT[:12] + "0" * 52, "float32") is None


@pytest.mark.parametrize("package", ["rebinding", "torch", "transformers"])
def test_other_versions_are_not_certified_by_it(package: str, tmp_path: Path) -> None:
    save(tmp_path, **{package: "0.0.1"})
    assert find_certificate(tmp_path, FINGERPRINT, "float32") is None


def test_versions_that_compute_the_same_do_not_matter(tmp_path: Path) -> None:
    save(tmp_path, python="3.99", nnsight="9.9")
    assert find_certificate(tmp_path, FINGERPRINT, "float32") is not None


def test_a_damaged_certificate_is_ignored_with_a_warning(tmp_path: Path) -> None:
    path = save(tmp_path)
    path.write_text(path.read_text("utf-8")[:-20], "utf-8")
    with pytest.warns(StoreWarning, match="is no certificate"):
        assert find_certificate(tmp_path, FINGERPRINT, "float32") is None
