"""A store on a bad disk: damage is reported once and repaired; no place, user or clock changes or loses evidence."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import resource
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rebinding.evidence import Evidence, EvidenceError
from rebinding.evidence.evidence import KEY
from rebinding.evidence.shards import checksum_path
from rebinding.evidence.store import KINDS, StoreWarning, library_versions
from tests.evidence.stores import BOMBS, CONTENTS, content, fill, shards, write_bomb

NAMES = sorted(CONTENTS)
Damage: TypeAlias = Callable[[Path], object]
OVERRIDE = 0b110
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: with these a file is opened whatever its permissions are."""
CAPABILITIES = 0x20080522
"""The version of the kernel's call: two sets of 32 capabilities each."""


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Be bound by permissions for the length of a block; tests in containers often run as the administrator.

    Not by becoming somebody else: the library's own files must stay readable, and they may lie in a folder that is
    closed to everybody else. So the thread lays down the capabilities that make permissions meaningless.
    """
    libc, header = ctypes.CDLL(None, use_errno=True), struct.pack("Ii", CAPABILITIES, 0)
    before = ctypes.create_string_buffer(24)  # effective, permitted and inheritable, twice
    assert libc.capget(header, before) == 0
    effective, *others = struct.unpack("6I", before.raw)
    assert libc.capset(header, struct.pack("6I", effective & ~OVERRIDE, *others)) == 0
    try:
        yield
    finally:
        assert libc.capset(header, before.raw) == 0


def flip_a_bit(path: Path) -> None:
    """The last one: of a tensor's value, of a text."""
    *original, last = path.read_bytes()
    path.write_bytes(bytes([*original, last ^ 1]))


def put_a_folder_there(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "thesis.txt").write_text("somebody's only copy")


def link_out_of_the_store(path: Path) -> None:
    """What it leads to is the very same file."""
    outside = path.parents[2] / "outside" / path.name
    outside.parent.mkdir(exist_ok=True)
    path.symlink_to(path.rename(outside))


def link_to_nowhere(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def put_a_pipe_there(path: Path) -> None:
    """Whoever opens it waits for ever."""
    path.unlink()
    os.mkfifo(path)


def with_checksum(path: Path) -> None:
    """Write the right checksum of a shard that was exchanged, as somebody would who means it."""
    checksum_path(path).write_text(hashlib.sha256(path.read_bytes()).hexdigest() + "\n")


def save_without_address(path: Path) -> None:
    """As older versions wrote it."""
    (kind,) = (kind for kind in KINDS if path.suffix == kind.SUFFIX)
    kind.load(path).save(path)
    with_checksum(path)


def put_nonsense_there(path: Path) -> None:
    path.write_bytes(b"nonsense" * 100)
    with_checksum(path)


DAMAGES: Mapping[str, Damage] = {
    "a bit is flipped": flip_a_bit,
    "it is cut short": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "it may not be read": lambda path: path.chmod(0),
    "a folder instead": put_a_folder_there,
    "a link out of the store": link_out_of_the_store,
    "a link to nowhere": link_to_nowhere,
    "a pipe instead": put_a_pipe_there,
    "the note is empty": lambda path: checksum_path(path).write_bytes(b""),
    "the note is removed": lambda path: checksum_path(path).unlink(),
    "the note is a link out of the store": lambda path: link_out_of_the_store(checksum_path(path)),
    "a right checksum, and no address": save_without_address,
    "a right checksum of nonsense": put_nonsense_there,
}
"""What is done to each shard of a store. A shard of another address is in `test_store.py`."""


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A store that nothing happened to."""
    assert sorted(fill(tmp_path / "whole")) == NAMES
    return tmp_path / "whole"


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_reported_once_and_changes_nothing_that_is_read(damage: str, whole: Path, tmp_path: Path) -> None:
    root = tmp_path / "damaged"
    shutil.copytree(whole, root)
    paths = shards(root)
    for path in paths:
        DAMAGES[damage](path)
    outside = content(tmp_path / "outside")
    with ordinary_user(), pytest.warns(StoreWarning) as warning_list:
        assert sorted(fill(root)) == NAMES
    messages = [str(warning.message).partition(" is damaged (") for warning in warning_list]
    assert sorted(path for path, *_ in messages) == [str(path) for path in paths]
    assert all(reason.endswith(") and is computed again") for *_, reason in messages)
    assert content(root) == content(whole), "the store is not as it was"
    assert content(tmp_path / "outside") == outside, "something outside was changed"
    assert len(list(root.rglob("thesis.txt"))) == len(paths) * ("folder" in damage), "a folder was thrown away"


SETTINGS = {"schema": 1, "experiment": "toy", "settings": {}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (SETTINGS | {"schema": 99}, "has evidence schema 99; this version reads 1"),
        (SETTINGS | {"settings": [1]}, "settings that are no object"),
        ({"schema": 1}, r"settings that this project did not write \(KeyError"),
        (None, "without settings: it was not written by this project"),
    ],
)
def test_tables_of_other_programs_are_refused(fields: Any, message: str, tmp_path: Path) -> None:
    table = pa.table({"x": [1, 2]})
    pq.write_table(table.replace_schema_metadata(fields and {KEY: json.dumps(fields)}), tmp_path / "table.parquet")
    with pytest.raises(EvidenceError, match=message):
        Evidence.load(tmp_path / "table.parquet")


MOST_MEMORY = 1 << 30
"""Bytes by which the process may grow at its peak: a hundredth of what the larger bomb unfolds to."""


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_small_file_that_stands_for_gigabytes_is_refused(bomb: Callable[[], pa.Array], tmp_path: Path) -> None:
    write_bomb(bomb, tmp_path / "bomb.parquet")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(EvidenceError, match=r"largest size of evidence|evidence has at most"):
        Evidence.load(tmp_path / "bomb.parquet")
    assert 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) <= MOST_MEMORY


def test_a_store_may_have_an_odd_path(whole: Path, tmp_path: Path) -> None:
    root = tmp_path.joinpath("spaces  and\ttabs", "Ünïcödé 模型 🐇", "x" * 200, "-rf", "a=1", "quote'\"\\", "new\nline")
    assert sorted(fill(root)) == NAMES
    assert fill(root) == []
    assert content(root) == content(whole)


@pytest.mark.parametrize("stored", [["note"], []])
def test_a_read_only_store_is_read_and_what_is_lost_is_said(stored: list[str], tmp_path: Path) -> None:
    """What is there is read without a word. The rest is computed, and that it is lost afterwards is said."""
    root, missing = tmp_path / "store", [name for name in CONTENTS if name not in stored]
    root.mkdir()
    assert fill(root, stored) == stored
    before = content(root)
    for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
        folder.chmod(0o555)
    with ordinary_user(), pytest.warns(StoreWarning) as warning_list:
        assert fill(root) == missing
    message = f"evidence cannot be stored in {root} (Permission denied); this run uses it, the next one cannot"
    assert [str(warning.message) for warning in warning_list] == [message] * len(missing)
    assert content(root) == before


def test_evidence_survives_a_full_disk(whole: Path, tmp_path: Path) -> None:
    """The kernel refuses to write more than ten bytes of a file: the write fails in the middle."""
    root, before = tmp_path / "store", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.warns(StoreWarning) as warning_list:
            assert sorted(fill(root)) == NAMES
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [f"cannot be stored in {root} (" in str(warning.message) for warning in warning_list] == [True] * len(NAMES)
    assert content(root) == {}
    assert sorted(fill(root)) == NAMES
    assert content(root) == content(whole)


@pytest.mark.parametrize("year", [1970, 2099])
def test_the_age_of_shards_decides_nothing(year: int, whole: Path) -> None:
    """Shards and locks from the future, as after a clock that was set back, and from before there were computers."""
    before, timestamp = content(whole), (year - 1970) * 365.25 * 86400
    for path in whole.rglob("*"):
        os.utime(path, (timestamp, timestamp))
    assert fill(whole) == []
    shards(whole)[0].unlink()
    assert len(fill(whole)) == 1
    assert content(whole) == before


def test_a_link_or_folder_in_place_of_a_lock_is_no_lock(whole: Path, tmp_path: Path) -> None:
    """A link in its place is not followed, a folder makes room."""
    user_file = tmp_path / "thesis.txt"
    user_file.write_text("somebody's only copy")
    link, folder, _ = (path.with_suffix(".lock") for path in shards(whole))
    link.unlink()
    link.symlink_to(user_file)
    folder.unlink()
    folder.mkdir()
    for path in shards(whole):
        path.unlink()
    assert sorted(fill(whole)) == NAMES
    assert user_file.read_text() == "somebody's only copy"
    assert not link.is_symlink()
    assert folder.is_file()


def test_each_version_of_a_library_has_shards_of_its_own(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither reads what the other wrote, neither disturbs it, and none is told of damage (warnings are errors)."""
    before, version = content(whole), metadata.version
    for library in library_versions():
        with monkeypatch.context() as patch:
            patch.setattr(metadata, "version", lambda name, other=library: "1.0" if name == other else version(name))
            library_versions.cache_clear()
            assert sorted(fill(whole)) == NAMES
        library_versions.cache_clear()
        assert content(whole).items() >= before.items()
    assert fill(whole) == []
    assert len(content(whole)) == 3 * len(before)
