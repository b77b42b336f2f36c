"""Place, users, clock and library versions of a store change no evidence, and lose none."""

from __future__ import annotations

import os
import resource
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import pytest

from rebinding.evidence.store import StoreWarning, library_versions
from tests.oracles.faults.stores import BLOCKS, blocks, content, ordinary_user, shards

SMALL_N = 3
NAMES = ["with spaces  and\ttabs", "Ünïcödé 模型 🐇", "x" * 200, "-rf", "a=1", "quote'\"\\", "new\nline"]


@pytest.fixture
def full_store(tmp_path: Path) -> Path:
    """A store of a few shards that nothing happened to."""
    blocks(tmp_path / "whole", SMALL_N)
    return tmp_path / "whole"


def silent(root: Path) -> list[int]:
    """Run without a word; which items had to be computed."""
    computed: list[int] = []
    blocks(root, SMALL_N, computed)  # warnings are errors here
    return computed


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_a_store_may_have_an_odd_path(name: str, full_store: Path, tmp_path: Path) -> None:
    root = tmp_path / name / "store"
    assert silent(root) == list(range(SMALL_N))
    assert silent(root) == []
    assert content(root) == content(full_store)


@pytest.mark.parametrize("mode", [SMALL_N, 1, 0])
def test_a_read_only_store_is_read_and_what_is_lost_is_said(mode: int, tmp_path: Path) -> None:
    """What is there is read without a word. The rest is computed, and that it is lost afterwards is said."""
    root, computed = tmp_path / "store", list[int]()
    root.mkdir()
    if mode:
        blocks(root, mode)
    before = content(root)
    with _make_read_only(root), warnings.catch_warnings(record=True) as excinfo:
        warnings.simplefilter("always")
        evidence = blocks(root, SMALL_N, computed)
    assert computed == list(range(mode, SMALL_N))
    assert [warning.category for warning in excinfo] == [StoreWarning] * len(computed)
    assert all(f"cannot be stored in {root} (Permission denied)" in str(warning.message) for warning in excinfo)
    assert evidence.rows.equals(blocks(tmp_path / "other", SMALL_N).rows)
    assert content(root) == before


@contextmanager
def _make_read_only(root: Path) -> Iterator[None]:
    folders = [path for path in (root, *root.rglob("*")) if path.is_dir()]
    for path in folders:
        path.chmod(0o555)
    with ordinary_user():
        yield


@pytest.mark.parametrize("room", [0, 100, 2000])
def test_evidence_survives_a_full_disk(room: int, full_store: Path, tmp_path: Path) -> None:
    """The kernel refuses to write more than so many bytes of a file: the write fails in the middle."""
    root = tmp_path / "store"
    with _room(room), warnings.catch_warnings(record=True) as excinfo:
        warnings.simplefilter("always")
        evidence = blocks(root, SMALL_N)
    assert evidence.rows.equals(blocks(full_store, SMALL_N).rows)
    assert [warning.category for warning in excinfo] == [StoreWarning] * SMALL_N
    assert "cannot be stored" in str(excinfo[0].message)
    assert content(root) == {}
    assert silent(root) == list(range(SMALL_N))
    assert content(root) == content(full_store)


@contextmanager
def _room(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("year", [1970, 2099])
def test_the_age_of_shards_decides_nothing(year: int, full_store: Path) -> None:
    """Shards and locks from the future, as after a clock that was set back, and from before there were computers."""
    before, timestamp = content(full_store), (year - 1970) * 365.25 * 86400
    for path in full_store.rglob("*"):
        os.utime(path, (timestamp, timestamp))
    assert silent(full_store) == []
    shards(full_store)[0].unlink()
    assert len(silent(full_store)) == 1
    assert content(full_store) == before


def test_a_link_or_folder_in_place_of_a_lock_is_no_lock(full_store: Path, tmp_path: Path) -> None:
    """A link in its place is not followed, a folder makes room."""
    user_file = tmp_path / "thesis.txt"
    user_file.write_text("somebody's only copy")
    first, second, _ = (path.with_suffix(".lock") for path in shards(full_store))
    first.unlink()
    first.symlink_to(user_file)
    second.unlink()
    second.mkdir()
    for path in shards(full_store):
        path.unlink()
    assert silent(full_store) == list(range(SMALL_N))
    assert user_file.read_text() == "somebody's only copy"
    assert not first.is_symlink()
    assert second.is_file()


def test_a_shard_does_not_depend_on_those_already_there(tmp_path: Path) -> None:
    """From the front, or the other way round: a shard is itself, in whatever company."""
    blocks(tmp_path / "bit by bit", SMALL_N)
    blocks(tmp_path / "bit by bit", BLOCKS)
    blocks(tmp_path / "at once", BLOCKS)
    assert content(tmp_path / "bit by bit") == content(tmp_path / "at once")


def other_torch(name: str) -> str:
    return "1.0" if name == "torch" else metadata.metadata(name)["Version"]


def test_each_version_has_shards_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither reads what the other wrote, neither disturbs it, and none is told of damage (warnings are errors)."""
    first, yours, shared = (tmp_path / name for name in ("mine", "yours", "both"))
    blocks(first, SMALL_N)
    blocks(shared, SMALL_N)
    with monkeypatch.context() as patch:
        patch.setattr(metadata, "version", other_torch)
        library_versions.cache_clear()
        computed: list[int] = []
        blocks(shared, SMALL_N, computed)
        blocks(yours, SMALL_N)
        assert computed == list(range(SMALL_N))
    library_versions.cache_clear()
    assert not content(first).keys() & content(yours).keys()
    assert content(shared) == content(first) | content(yours)
    computed = []
    blocks(shared, SMALL_N, computed)
    assert computed == []
