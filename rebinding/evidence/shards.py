"""The files of a store: written completely or not at all, and checked before they are used.

A shard is valid if it is a plain file, if its bytes have the checksum in the note next to it, and if the address inside
it is that of its place. So a file that was exchanged for another is noticed even if its note came with it.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

DIGITS = 64
"""Characters of a checksum."""


class Damaged(ValueError):
    """A shard that is not valid, and why."""


def checksum_path(path: Path) -> Path:
    """The checksum note of a shard."""
    return path.with_suffix(".sha256")


def check(path: Path, address: str, read_address: Callable[[Path], str | None]) -> None:
    """Raise `Damaged`, or the reader's own error for a foreign file, unless a shard is valid.

    `read_address` reads the address inside a file.
    """
    if not plain(path):
        raise Damaged("it is no plain file")
    if not plain(checksum_path(path)):
        raise Damaged("it has no checksum file next to it")
    with checksum_path(path).open("rb") as note:
        expected = note.read(2 * DIGITS).strip()
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual.encode() != expected:
        raise Damaged("its checksum differs")
    inside = read_address(path)
    if inside != address:
        raise Damaged(f"the address inside it is {inside!r}, expected {address!r}")


def plain(path: Path) -> bool:
    """Whether this is a file, and not a link to one: a store has no links to files elsewhere."""
    return path.is_file() and not path.is_symlink()


def write(path: Path, save: Callable[[Path], None]) -> None:
    """Write a shard and its note. It appears completely or not at all; a shard without its note is not used.

    The caller holds the shard's lock. Partial files of a process that was killed while it wrote this shard are removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for partial in path.parent.glob(f".{path.stem}.*.part"):
        partial.unlink(missing_ok=True)
    put_in_place({path: save})
    with path.open("rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
    put_in_place({checksum_path(path): lambda part: write_text(part, f"{checksum}\n")})


@contextmanager
def taking_turns(path: Path) -> Iterator[None]:
    """Hold the lock of a shard; go on without where no lock can be written, as in a read-only store.

    The lock is the kernel's and ends with its process, so the lock file of a dead process blocks nobody.
    """
    lock = FileLock(path.with_suffix(".lock"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not plain(path.with_suffix(".lock")):
            _clear_path(path.with_suffix(".lock"))
        lock.acquire()
    except OSError:
        yield
        return
    try:
        yield
    finally:
        lock.release()


def write_text(path: Path, text: str) -> None:
    """Write a text without changing its line ends."""
    path.write_text(text, encoding="utf-8", newline="")


def put_in_place(writers: Mapping[Path, Callable[[Path], None]]) -> None:
    """Write each file under a temporary name in its folder, then move each to its path in one step.

    If one cannot be written, none is moved, and all temporary files are removed. Nothing waits for the disk: after a
    loss of power the checksum shows which shards are damaged.
    """
    parts = {path: path.with_name(f".{path.stem}.{uuid.uuid4().hex[:8]}.part") for path in writers}
    try:
        for path, write_part in writers.items():
            try:
                parts[path].touch(exist_ok=False)  # never an existing file or link; with the user's default permissions
                write_part(parts[path])
            except OSError as error:  # libraries do not say which file it was
                raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        for path, part in parts.items():
            if path.is_dir():
                _clear_path(path)
            part.replace(path)
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)


def _clear_path(path: Path) -> None:
    """Remove a link at a path; rename a folder there, which keeps its content."""
    if path.is_symlink():
        path.unlink()
    elif path.is_dir():
        path.rename(path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.aside"))
