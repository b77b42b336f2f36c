"""The store: evidence, activations and notes on disk, by a cache key of everything they depend on.

A shard's key is a hash of the model's weights and tokenizer, the prompts, the settings, the dtype, the versions of the
numerical libraries, and the source files of `rebinding` that the experiment imports. If any of these changes, the key
changes, so no stale shard can be read. A shard is moved into place in one step; one that is damaged, or is at another
shard's address, is computed again (`rebinding.evidence.shards`).
"""

from __future__ import annotations

import importlib.metadata
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from rebinding.evidence import Evidence
from rebinding.evidence.request import digest
from rebinding.evidence.shards import check, checksum_path, plain, taking_turns, write

DEFAULT_FOLDER = ".rebinding"
VARIABLE = "REBINDING_STORE"
LIBRARIES = ("torch", "transformers")
"""Libraries whose next version may round differently."""
LONGEST_ADDRESS = 1000
"""Bytes of a note's first line that are read."""


@dataclass(frozen=True, eq=False)
class Activations:
    """Tensors of a model that several experiments use: means of head outputs, of queries, of keys. A round trip through
    a file keeps every bit."""

    tensors: Mapping[str, Tensor]
    SUFFIX: ClassVar[str] = ".safetensors"

    def save(self, path: Path, address: str | None = None) -> None:
        """Write as safetensors; in a store the header has the shard's address."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.tensors.items()}
        try:
            save_file(tensors, path, None if address is None else {"address": address})
        except SafetensorError as error:  # a full disk, in the library's own words
            raise OSError(f"{path} cannot be written ({error})") from error

    @classmethod
    def load(cls, path: Path) -> Activations:
        """Read what `save` wrote, onto the CPU; the caller moves a tensor to its device."""
        return cls(load_file(path))

    @staticmethod
    def address(path: Path) -> str | None:
        """The address in a file's header; its tensors are not read."""
        with safe_open(path, framework="pt") as file:
            address: str | None = (file.metadata() or {}).get("address")
        return address


@dataclass(frozen=True)
class Note:
    """Text that is slow to make, such as a figure as SVG; a round trip through a file keeps every byte."""

    text: str
    SUFFIX: ClassVar[str] = ".txt"

    def save(self, path: Path, address: str | None = None) -> None:
        """Write the shard's address (or an empty line), then the text as UTF-8 with its own line ends."""
        path.write_text(f"{address or ''}\n{self.text}", encoding="utf-8", newline="")

    @classmethod
    def load(cls, path: Path) -> Note:
        """Read what `save` wrote."""
        return cls(path.read_bytes().decode("utf-8").partition("\n")[2])

    @staticmethod
    def address(path: Path) -> str | None:
        """The address in a file's first line."""
        with path.open("rb") as file:
            return file.readline(LONGEST_ADDRESS).decode("utf-8").removesuffix("\n") or None


Content = TypeVar("Content", Evidence, Activations, Note)
KINDS: tuple[type[Evidence | Activations | Note], ...] = (Evidence, Activations, Note)
"""The kinds of content of a shard; each has its own file ending."""


class StoreWarning(UserWarning):
    """A shard could not be used, or could not be written."""


def default_root() -> Path:
    """The default folder: `REBINDING_STORE` if it is set, else `.rebinding` here."""
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
    """A store of shards by experiment and key: a folder (`Store`), or the memory of a process."""

    def holds(self, kind: type[Content], experiment: str, key: str) -> bool:
        """Whether the shard exists."""
        ...

    def remember(self, kind: type[Content], experiment: str, key: str, compute: Callable[[], Content]) -> Content:
        """Return the shard if it exists, else compute and store it."""
        ...


@dataclass(frozen=True)
class Store:
    """A folder of shards: `root/experiment/key.parquet`, or `.safetensors`, with `key.sha256` next to each."""

    root: Path

    def path(self, kind: type[Content], experiment: str, key: str) -> Path:
        """The path of a shard, whether it exists or not."""
        return self.root / experiment / f"{key}{kind.SUFFIX}"

    def holds(self, kind: type[Content], experiment: str, key: str) -> bool:
        """Whether the shard exists and is valid."""
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
        except Exception as error:  # a reader may raise anything for a foreign file
            message = f"{path} is damaged ({error}) and is computed again"
            warnings.warn(message, StoreWarning, stacklevel=2)
            return None

    def put(self, experiment: str, key: str, content: Content) -> None:
        """Write a shard, and replace an existing one."""
        path, address = self.path(type(content), experiment, key), _address(experiment, key)
        write(path, lambda part: content.save(part, address))

    def remember(self, kind: type[Content], experiment: str, key: str, compute: Callable[[], Content]) -> Content:
        """Return the shard if it exists, else compute and store it. A second process waits, then reads.

        On a full disk or in a read-only store the content is returned without being stored, with a warning.
        """
        with taking_turns(self.path(kind, experiment, key)):
            content = self.get(kind, experiment, key)
            if content is not None:
                return content
            content = compute()
            try:
                self.put(experiment, key, content)
            except OSError as error:
                cause = error.strerror or error
                message = f"evidence cannot be stored in {self.root} ({cause}); this run uses it, the next one cannot"
                warnings.warn(message, StoreWarning, stacklevel=2)
            return content

    def entries(self) -> Iterator[Entry]:
        """Every shard, by experiment and key."""
        for path in sorted(path for kind in KINDS for path in self.root.glob(f"*/*{kind.SUFFIX}") if plain(path)):
            status = path.stat()
            yield Entry(path.parent.name, path.stem, path, status.st_size, status.st_mtime)

    def clear(self, experiment: str | None = None) -> int:
        """Remove the shards of one experiment, or all, and no other files; returns the number of shards."""
        entries = [entry for entry in self.entries() if experiment in (None, entry.experiment)]
        for entry in entries:
            with taking_turns(entry.path):
                entry.path.unlink(missing_ok=True)
                checksum_path(entry.path).unlink(missing_ok=True)
        return len(entries)


@cache
def library_versions() -> Mapping[str, str]:
    """The installed versions of the numerical libraries."""
    return MappingProxyType({name: importlib.metadata.version(name) for name in LIBRARIES})


def cache_key(fingerprint: str, dtype: str, code: str, content: Any) -> str:
    """The key of the shard with this `content` (plain JSON: prompts, candidates) of a model. `code` is the hash of the
    source that determines its numbers."""
    about = {"subject": fingerprint, "dtype": dtype, "libraries": dict(library_versions())}
    return digest({**about, "code": code, "content": content})


def _address(experiment: str, key: str) -> str:
    """The address that is written inside a shard."""
    return f"{experiment}/{key}"
