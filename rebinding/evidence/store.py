"""Evidence, activations and notes on disk, found again by what made them.

A shard's address is a hash of everything its numbers depend on: the subject's weights and tokenizer, the prompts, the
settings, the dtype, the versions of the numerical libraries, and the source files of `rebinding` that the experiment
imports. Whatever changes, the address changes, and nothing stale can be read. What stays is exact: a shard is moved
into place whole, and its checksum beside it tells a damaged one, which is computed again.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock

from rebinding.evidence import Evidence
from rebinding.evidence.activations import Activations
from rebinding.evidence.notes import Note
from rebinding.evidence.request import digest
from rebinding.evidence.sources import code_hash

Content = TypeVar("Content", Evidence, Activations, Note)

DEFAULT_FOLDER = ".rebinding"
VARIABLE = "REBINDING_STORE"
LIBRARIES = ("torch", "transformers")
"""Libraries whose next version may round differently."""


KINDS: tuple[type[Evidence | Activations | Note], ...] = (Evidence, Activations, Note)
"""What can be in a shard; each is told by the ending of its file."""


class StoreWarning(UserWarning):
    """Something in the store could not be used and is made anew."""


def default_root() -> Path:
    """Where evidence is kept if nobody says: what `REBINDING_STORE` names, else `.rebinding` here."""
    return Path(os.environ.get(VARIABLE) or DEFAULT_FOLDER)


@dataclass(frozen=True)
class Entry:
    """One shard in a store."""

    experiment: str
    key: str
    path: Path
    bytes: int
    written: float


@dataclass(frozen=True)
class Store:
    """A folder of shards: `root/experiment/key.parquet`, or `.safetensors`, with `key.sha256` beside each."""

    root: Path

    def path(self, kind: type[Content], experiment: str, key: str) -> Path:
        """Where a shard is or would be."""
        return self.root / experiment / f"{key}{kind.SUFFIX}"

    def holds(self, kind: type[Content], experiment: str, key: str) -> bool:
        """Whether the shard is there, undamaged."""
        path = self.path(kind, experiment, key)
        return path.is_file() and _checksum(path) == _noted(path)

    def get(self, kind: type[Content], experiment: str, key: str) -> Content | None:
        """The shard, or None if it is missing; also None, with a warning, if it is damaged."""
        path = self.path(kind, experiment, key)
        if not path.is_file():
            return None
        if _checksum(path) != _noted(path):
            warnings.warn(f"{path} is damaged (its checksum differs) and is computed again", StoreWarning, stacklevel=2)
            return None
        return kind.load(path)

    def put(self, experiment: str, key: str, content: Content) -> None:
        """Write a shard. It appears whole or not at all; the checksum follows, and a shard without one is not used."""
        path = self.path(type(content), experiment, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, content.save)
        checksum = _checksum(path)
        _replace(_beside(path), lambda there: _write(there, checksum))

    def remember(self, kind: type[Content], experiment: str, key: str, compute: Callable[[], Content]) -> Content:
        """The shard if it is there, else what `compute` gives, kept. Whoever comes second waits and then reads."""
        path = self.path(kind, experiment, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            found = self.get(kind, experiment, key)
            if found is None:
                found = compute()
                self.put(experiment, key, found)
            return found

    def entries(self) -> Iterator[Entry]:
        """Every shard, by experiment and key."""
        for path in sorted(path for kind in KINDS for path in self.root.glob(f"*/*{kind.SUFFIX}")):
            about = path.stat()
            yield Entry(path.parent.name, path.stem, path, about.st_size, about.st_mtime)

    def clear(self, experiment: str | None = None) -> int:
        """Remove the shards of one experiment, or all; returns how many. Nothing else in the folder is touched."""
        gone = [entry for entry in self.entries() if experiment in (None, entry.experiment)]
        for entry in gone:
            with FileLock(entry.path.with_suffix(".lock")):
                entry.path.unlink(missing_ok=True)
                _beside(entry.path).unlink(missing_ok=True)
        return len(gone)

    def shelf(self, *, subject: str, dtype: str) -> Shelf:
        """The part of the store that belongs to a subject, named by its fingerprint."""
        libraries = {name: importlib.metadata.version(name) for name in LIBRARIES}
        return Shelf(self, {"subject": subject, "dtype": dtype, "libraries": libraries})


@dataclass(frozen=True)
class Shelf:
    """A store together with what is already known of the address of its shards."""

    store: Store
    about: Mapping[str, Any]

    def of(self, *modules: str, settings: Mapping[str, Any]) -> Shelf:
        """For an experiment: `modules` are those whose source, with all that they import, decides its numbers."""
        return replace(self, about={**self.about, "code": code_hash(*modules), "settings": dict(settings)})

    def key(self, content: Any) -> str:
        """The address of the shard made of `content` (plain JSON: prompts, candidates)."""
        return digest({**self.about, "content": content})


def _beside(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _noted(path: Path) -> str | None:
    note = _beside(path)
    return note.read_text().strip() if note.is_file() else None


def _write(path: Path, text: str) -> None:
    path.write_text(f"{text}\n")


def _replace(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` make a file elsewhere in the folder, then move it to its place in one step.

    What a loss of power leaves of it is told by the checksum; nothing waits for the disk.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    os.close(handle)
    part = Path(name)
    try:
        write(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
