"""Place, other users and clock of a store change no evidence, and lose none."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rebinding.evidence.store import StoreWarning
from tests.oracles.faults.stores import content, shards
from tests.oracles.faults.toy_run import BLOCKS, blocks
from tests.oracles.faults.users import ordinary_user

ROOT = Path(__file__).parents[3]
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
def test_a_store_at_an_odd_place(name: str, full_store: Path, tmp_path: Path) -> None:
    root = tmp_path / name / "store"
    assert silent(root) == list(range(SMALL_N))
    assert silent(root) == []
    assert content(root) == content(full_store)


@pytest.mark.parametrize("mode", [SMALL_N, 1, 0])
def test_a_store_that_may_only_be_read(mode: int, tmp_path: Path) -> None:
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
def test_a_disk_without_room(room: int, full_store: Path, tmp_path: Path) -> None:
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
def test_the_clock_decides_nothing(year: int, full_store: Path) -> None:
    """Shards and locks from the future, as after a clock that was set back, and from before there were computers."""
    before, timestamp = content(full_store), (year - 1970) * 365.25 * 86400
    for path in full_store.rglob("*"):
        os.utime(path, (timestamp, timestamp))
    assert silent(full_store) == []
    shards(full_store)[0].unlink()
    assert len(silent(full_store)) == 1
    assert content(full_store) == before


HOLDING = """
import sys, time
from pathlib import Path
from filelock import FileLock
with FileLock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_lock_of_a_dead_process_holds_nobody_up(full_store: Path) -> None:
    path = shards(full_store)[0]
    path.unlink()
    command = [sys.executable, "-c", HOLDING, str(path.with_suffix(".lock"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        os.kill(process.pid, signal.SIGKILL)
    path.with_suffix(".lock").write_text(str(process.pid))
    signal.alarm(60)  # a run that waits for it would wait for ever
    try:
        assert len(silent(full_store)) == 1
    finally:
        signal.alarm(0)


def test_a_lock_that_is_none(full_store: Path, tmp_path: Path) -> None:
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


CROWD = """
import os, sys
from pathlib import Path
from rebinding.evidence.store import Note
from rebinding.evidence.store import Store

root, log = Path(sys.argv[1]), Path(sys.argv[2])

def compute():
    with log.open("a") as file:
        file.write(f"{os.getpid()}\\n")
    return Note("made once")

gate, go = os.pipe()
children = []
for _ in range(10):
    child = os.fork()
    if child == 0:
        os.close(go)
        os.read(gate, 1)
        os._exit(0 if Store(root).remember(Note, "toy", "key", compute) == Note("made once") else 1)
    children.append(child)
os.close(go)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""


def test_ten_processes_want_the_same_shard(tmp_path: Path) -> None:
    """They start at one moment, one computes, and all have it."""
    forked = "ignore:This process:DeprecationWarning"  # from Python 3.12 on: torch has threads, which no child uses
    command = [sys.executable, "-W", forked, "-c", CROWD, str(tmp_path / "store"), str(tmp_path / "log")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (result.stdout.strip(), result.stderr) == (str([0] * 10), "")
    assert len((tmp_path / "log").read_text().split()) == 1


def test_the_bytes_do_not_depend_on_what_is_there_already(tmp_path: Path) -> None:
    """From the front, or the other way round: a shard is itself, in whatever company."""
    blocks(tmp_path / "bit by bit", SMALL_N)
    blocks(tmp_path / "bit by bit", BLOCKS)
    blocks(tmp_path / "at once", BLOCKS)
    assert content(tmp_path / "bit by bit") == content(tmp_path / "at once")
