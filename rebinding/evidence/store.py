"""Evidence, activations and notes on disk, found again by what made them.

A shard's address is a hash of everything its numbers depend on: the subject's weights and tokenizer, the prompts, the
settings, the dtype, the versions of the numerical libraries, and the source files of `rebinding` that the experiment
imports. Whatever changes, the address changes, and nothing stale can be read. What stays is exact: a shard is moved
into place whole, and what is damaged, or lies at another's address, is computed again (`rebinding.evidence.shards`).
"""

from __future__ import annotations

import importlib.metadata
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from rebinding.evidence import Evidence
from rebinding.evidence.activations import Activations
from rebinding.evidence.request import digest
from rebinding.evidence.shards import beside, check, plain, taking_turns, write
from rebinding.evidence.sources import code_hash

DEFAULT_FOLDER = ".rebinding"
VARIABLE = "REBINDING_STORE"
LIBRARIES = ("torch", "transformers")
"""Libraries whose next version may round differently."""
LONGEST_ADDRESS = 1000
"""Bytes of a note's first line that are read."""


@dataclass(frozen=True)
class Note:
    """Text that took a while to make, such as a figure as SVG; a round trip through a file changes nothing."""

    text: str
    SUFFIX: ClassVar[str] = ".txt"

    def save(self, path: Path, address: str | None = None) -> None:
        """Write as UTF-8, line ends as they are, below a line with the shard's address; an empty line without one."""
        path.write_text(f"{address or ''}\n{self.text}", encoding="utf-8", newline="")

    @classmethod
    def load(cls, path: Path) -> Note:
        """Read what `save` wrote."""
        return cls(path.read_bytes().decode("utf-8").partition("\n")[2])

    @staticmethod
    def address(path: Path) -> str | None:
        """The address that a file says it belongs to."""
        with path.open("rb") as file:
            return file.readline(LONGEST_ADDRESS).decode("utf-8").removesuffix("\n") or None


Content = TypeVar("Content", Evidence, Activations, Note)
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


class Shards(Protocol):
    """Whatever keeps shards by experiment and key: a folder (`Store`), or the memory of a process."""

    def holds(self, kind: type[Content], experiment: str, key: str) -> bool:
        """Whether the shard is there."""
        ...

    def remember(self, kind: type[Content], experiment: str, key: str, compute: Callable[[], Content]) -> Content:
        """The shard if it is there, else what `compute` gives, kept."""
        ...


@dataclass(frozen=True)
class Store:
    """A folder of shards: `root/experiment/key.parquet`, or `.safetensors`, with `key.sha256` beside each."""

    root: Path

    def path(self, kind: type[Content], experiment: str, key: str) -> Path:
        """Where a shard is or would be."""
        return self.root / experiment / f"{key}{kind.SUFFIX}"

    def holds(self, kind: type[Content], experiment: str, key: str) -> bool:
        """Whether the shard is there, undamaged."""
        try:
            check(self.path(kind, experiment, key), _address(experiment, key), kind.address)
        except Exception:
            return False
        return True

    def get(self, kind: type[Content], experiment: str, key: str) -> Content | None:
        """The shard, or None if it is missing; also None, with a warning, if it is damaged."""
        path = self.path(kind, experiment, key)
        if not os.path.lexists(path):
            return None
        try:
            check(path, _address(experiment, key), kind.address)
            return kind.load(path)
        except Exception as error:  # whatever a reader says of a file that nobody here wrote
            why = f"{path} is damaged ({error}) and is computed again"
            warnings.warn(why, StoreWarning, stacklevel=2)
            return None

    def put(self, experiment: str, key: str, content: Content) -> None:
        """Write a shard, in place of what may lie there."""
        write(self.path(type(content), experiment, key), content, _address(experiment, key))

    def remember(self, kind: type[Content], experiment: str, key: str, compute: Callable[[], Content]) -> Content:
        """The shard if it is there, else what `compute` gives, kept. Whoever comes second waits and then reads.

        What cannot be kept, on a full disk or in a store that is read-only, is used all the same, with a warning.
        """
        with taking_turns(self.path(kind, experiment, key)):
            found = self.get(kind, experiment, key)
            if found is not None:
                return found
            found = compute()
            try:
                self.put(experiment, key, found)
            except OSError as error:
                why = f"evidence cannot be kept in {self.root} ({error.strerror or error}); it is used, and lost after"
                warnings.warn(why, StoreWarning, stacklevel=2)
            return found

    def entries(self) -> Iterator[Entry]:
        """Every shard, by experiment and key."""
        for path in sorted(path for kind in KINDS for path in self.root.glob(f"*/*{kind.SUFFIX}") if plain(path)):
            about = path.stat()
            yield Entry(path.parent.name, path.stem, path, about.st_size, about.st_mtime)

    def clear(self, experiment: str | None = None) -> int:
        """Remove the shards of one experiment, or all; returns how many. Nothing else in the folder is touched."""
        gone = [entry for entry in self.entries() if experiment in (None, entry.experiment)]
        for entry in gone:
            with taking_turns(entry.path):
                entry.path.unlink(missing_ok=True)
                beside(entry.path).unlink(missing_ok=True)
        return len(gone)

    def shelf(self, *, loaded_model: str, dtype: str) -> Shelf:
        """The part of the store that belongs to a subject, named by its fingerprint."""
        return shelf_of(self, loaded_model=loaded_model, dtype=dtype)


@dataclass(frozen=True)
class Shelf:
    """A store together with what is already known of the address of its shards."""

    store: Shards
    about: Mapping[str, Any]

    def of(self, *modules: str, settings: Mapping[str, Any]) -> Shelf:
        """For an experiment: `modules` are those whose source, with all that they import, decides its numbers."""
        return replace(self, about={**self.about, "code": code_hash(*modules), "settings": dict(settings)})

    def key(self, content: Any) -> str:
        """The address of the shard made of `content` (plain JSON: prompts, candidates)."""
        return digest({**self.about, "content": content})


def shelf_of(store: Shards, *, loaded_model: str, dtype: str) -> Shelf:
    """The part of any store that belongs to a subject, named by its fingerprint."""
    libraries = {name: importlib.metadata.version(name) for name in LIBRARIES}
    return Shelf(store, {"subject": loaded_model, "dtype": dtype, "libraries": libraries})


def _address(experiment: str, key: str) -> str:
    """What a shard says inside of where it belongs."""
    return f"{experiment}/{key}"
