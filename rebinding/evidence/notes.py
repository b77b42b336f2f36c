"""Text that took a while to make, kept in the store: what a subject is, a figure as SVG."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

LONGEST = 1000
"""Bytes of a first line that are read."""


@dataclass(frozen=True)
class Note:
    """A text, the same after a round trip through a file."""

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
            return file.readline(LONGEST).decode("utf-8").removesuffix("\n") or None
