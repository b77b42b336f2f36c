"""The store: what is in it is complete, has its address inside, and belongs to the model that it was made for."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from rebinding.evidence import Evidence
from rebinding.evidence.certificates import certificate_file, find_certificate, save_certificate
from rebinding.evidence.shards import checksum_path, put_in_place, write_text
from rebinding.evidence.sources import code_hash
from rebinding.evidence.store import Activations, Note, Store, StoreWarning, cache_key, default_root
from rebinding.paper.certificate import installed_versions
from tests.evidence.stores import CONTENTS, is_equal
from tests.paper.certificates import make_certificate

OTHERS = {
    "evidence": Evidence("toy", pd.DataFrame({"id": [1], "value": [9.0]}), {}),
    "activations": Activations({"a": torch.zeros(2)}),
    "note": Note("another"),
}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.mark.parametrize("name", CONTENTS)
def test_a_shard_is_two_files_and_survives_a_round_trip(store: Store, name: str) -> None:
    """The last one written counts."""
    kind: type[Any] = type(CONTENTS[name])
    assert store.get(kind, "toy", "key") is None
    assert not store.holds(kind, "toy", "key")
    for content in (OTHERS[name], CONTENTS[name]):
        store.put("toy", "key", content)
        loaded = store.get(kind, "toy", "key")
        assert type(loaded) is kind
        assert is_equal(content, loaded)
    assert {path.name for path in (store.root / "toy").iterdir()} == {f"key{kind.SUFFIX}", "key.sha256"}


@pytest.mark.parametrize("name", CONTENTS)
def test_a_shard_copied_with_its_checksum_is_damaged(store: Store, name: str) -> None:
    """It has another address inside, so no evidence is read in place of another."""
    right, kind = CONTENTS[name], type(CONTENTS[name])
    store.put("toy", "key", right)
    store.put("toy", "other", OTHERS[name])
    target, source = (store.path(kind, "toy", key) for key in ("key", "other"))
    for target_file, copied in ((target, source), (checksum_path(target), checksum_path(source))):
        target_file.write_bytes(copied.read_bytes())
    assert not store.holds(kind, "toy", "key")
    with pytest.warns(StoreWarning, match="address inside it is 'toy/other'") as warning_list:
        assert is_equal(right, store.remember(kind, "toy", "key", lambda: right))
    assert len(warning_list) == 1
    assert store.holds(kind, "toy", "key")


def test_a_failed_write_leaves_the_old_shard(store: Store) -> None:
    store.put("toy", "key", CONTENTS["evidence"])
    with pytest.raises(Exception, match="object"):
        store.put("toy", "key", Evidence("toy", pd.DataFrame({"value": [object()]}), {}))
    assert is_equal(CONTENTS["evidence"], store.get(Evidence, "toy", "key"))
    assert not list(store.root.rglob("*.part"))


def test_shards_are_listed_and_cleared_and_nothing_else_is(store: Store) -> None:
    assert list(store.entries()) == []
    assert store.clear() == 0
    for experiment, key in (("toy", "b"), ("toy", "a"), ("other", "c")):
        store.put(experiment, key, CONTENTS["evidence"])
    (store.root / "notes.txt").write_text("mine")
    entries = list(store.entries())
    assert [(entry.experiment, entry.key) for entry in entries] == [("other", "c"), ("toy", "a"), ("toy", "b")]
    assert all(entry.bytes == entry.path.stat().st_size > 0 for entry in entries)
    assert store.clear("toy") == 2
    assert [entry.experiment for entry in store.entries()] == ["other"]
    assert store.clear() == 1
    assert not list(store.root.rglob("*.sha256"))
    assert (store.root / "notes.txt").exists()


def test_every_part_of_an_address_counts() -> None:
    """Versions of libraries are in `test_damaged_shards.py`."""
    parts: dict[str, Any] = {"fingerprint": "s", "dtype": "float32", "code": "rebinding.task.boxes", "content": (1, 2)}
    others = {"fingerprint": "t", "dtype": "bfloat16", "code": "rebinding.task.words", "content": (2, 1)}

    def key(**changes: Any) -> str:
        values = parts | changes
        return cache_key(**values | {"code": code_hash(values["code"])})

    assert len({key(), *(key(**{name: other}) for name, other in others.items())}) == 1 + len(others)
    assert key() == key()


def test_the_default_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REBINDING_STORE", raising=False)
    assert default_root() == Path(".rebinding")
    monkeypatch.setenv("REBINDING_STORE", "elsewhere")
    assert default_root() == Path("elsewhere")


def test_several_files_are_put_in_place_together_or_not_at_all(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.parquet", "b.json", "c.txt")]
    for path in paths:
        path.write_text("old")

    def write_half(part: Path) -> None:
        part.write_text("ne")
        raise OSError(errno.ENOSPC, "No space left on device")

    writers = dict.fromkeys(paths, lambda part: write_text(part, "new"))
    with pytest.raises(OSError, match="No space left") as excinfo:
        put_in_place({**writers, paths[1]: write_half})
    assert excinfo.value.filename == str(paths[1])
    assert [path.read_text() for path in paths] == ["old"] * 3
    assert sorted(tmp_path.iterdir()) == paths
    put_in_place(writers)
    assert [path.read_text() for path in paths] == ["new"] * 3
    assert sorted(tmp_path.iterdir()) == paths


FINGERPRINT = "0123abcd" * 8


def save_with_versions(root: Path, **versions: str) -> Path:
    """Save a certificate made by the installed versions, but for these."""
    path = certificate_file(root, FINGERPRINT)
    save_certificate(make_certificate(versions=installed_versions() | versions), path)
    return path


def test_a_saved_certificate_is_found_for_its_model_and_precision(tmp_path: Path) -> None:
    assert find_certificate(tmp_path, FINGERPRINT, "float32") is None
    assert save_with_versions(tmp_path) == tmp_path / "certificates" / "0123abcd0123.json"
    assert find_certificate(tmp_path, FINGERPRINT, "float32") == make_certificate()
    assert find_certificate(tmp_path, FINGERPRINT, "bfloat16") is None
    assert find_certificate(tmp_path, FINGERPRINT[:12] + "0" * 52, "float32") is None
    assert list(Store(tmp_path).entries()) == []  # it is no evidence


def test_a_certificate_is_of_the_versions_that_compute(tmp_path: Path) -> None:
    for package in ("rebinding", "torch", "transformers"):
        save_with_versions(tmp_path, **{package: "0.0.1"})
        assert find_certificate(tmp_path, FINGERPRINT, "float32") is None, package
    save_with_versions(tmp_path, python="3.99", nnsight="9.9")
    assert find_certificate(tmp_path, FINGERPRINT, "float32") is not None


def test_a_damaged_certificate_is_ignored_with_a_warning(tmp_path: Path) -> None:
    path = save_with_versions(tmp_path)
    path.write_text(path.read_text("utf-8")[:-20], "utf-8")
    with pytest.warns(StoreWarning, match="is no certificate"):
        assert find_certificate(tmp_path, FINGERPRINT, "float32") is None
