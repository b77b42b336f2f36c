"""The files of a store: written whole or not at all, and looked at before they are believed.

A shard is believed if it is a plain file, if its bytes have the checksum that its note beside it says, and if it says
inside that it belongs where it lies. So a file that was exchanged for another is noticed even if its note came along.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from filelock import FileLock

DIGITS = 64
"""Characters of a checksum."""


class Damaged(ValueError):
    """A shard that cannot be believed, and why."""


class Kept(Protocol):
    """What can be in a shard."""

    def save(self, path: Path, address: str | None = None) -> None: ...


def beside(path: Path) -> Path:
    """The checksum note of a shard."""
    return path.with_suffix(".sha256")


def check(path: Path, address: str, told: Callable[[Path], str | None]) -> None:
    """Raise `Damaged`, or what a reader says of a file that is none of its own, unless a shard can be believed.

    `told` reads the address inside a file.
    """
    if not plain(path):
        raise Damaged("it is no plain file")
    if not plain(beside(path)):
        raise Damaged("it has no checksum beside it")
    with beside(path).open("rb") as note:
        noted = note.read(2 * DIGITS).strip()
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found.encode() != noted:
        raise Damaged("its checksum differs")
    inside = told(path)
    if inside != address:
        raise Damaged(f"it says that it is {inside!r}, which belongs elsewhere")


def plain(path: Path) -> bool:
    """Whether this is a file, and not a link to one: evidence lies in its store."""
    return path.is_file() and not path.is_symlink()


def write(path: Path, content: Kept, address: str) -> None:
    """A shard with its note. It appears whole or not at all; a shard whose note is not there yet is not used.

    Leftovers of a process that was killed while it wrote this shard are removed; whoever writes holds its lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".{path.stem}.*.part"):
        left.unlink(missing_ok=True)
    put_in_place({path: lambda there: content.save(there, address)})
    with path.open("rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
    put_in_place({beside(path): lambda there: write_text(there, f"{checksum}\n")})


@contextmanager
def taking_turns(path: Path) -> Iterator[None]:
    """Hold the lock of a shard; where no lock can be written, as in a store that is read-only, go on without.

    The lock is the kernel's and ends with its process, so a file that a dead one left holds nobody up.
    """
    lock = FileLock(path.with_suffix(".lock"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not plain(path.with_suffix(".lock")):
            _aside(path.with_suffix(".lock"))
        lock.acquire()
    except OSError:
        yield
        return
    try:
        yield
    finally:
        lock.release()


def write_text(path: Path, text: str) -> None:
    """A text as it is, its line ends too."""
    path.write_text(text, encoding="utf-8", newline="")


def put_in_place(made: Mapping[Path, Callable[[Path], None]]) -> None:
    """Let every `make` write its file elsewhere in the folder, then move each to its place in one step.

    If one of them cannot be written, none is moved, and what was begun is removed. What a loss of power leaves of a
    shard is told by the checksum; nothing waits for the disk.
    """
    parts = {path: path.with_name(f".{path.stem}.{uuid.uuid4().hex[:8]}.part") for path in made}
    try:
        for path, make in made.items():
            try:
                parts[path].touch(exist_ok=False)  # nobody else's file or link; open to whom the user lets read files
                make(parts[path])
            except OSError as error:  # libraries do not say which file it was
                raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        for path, part in parts.items():
            if path.is_dir():
                _aside(path)
            part.replace(path)
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)


def _aside(path: Path) -> None:
    """Make room where something else lies: a link is removed, a folder keeps what it holds under another name."""
    if path.is_symlink():
        path.unlink()
    elif path.is_dir():
        path.rename(path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.aside"))
