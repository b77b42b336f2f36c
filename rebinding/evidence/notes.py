"""Text that took a while to make, kept in the store: what a subject is, a figure as SVG."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


@dataclass(frozen=True)
class Note:
    """A text, the same after a round trip through a file."""

    text: str
    SUFFIX: ClassVar[str] = ".txt"

    def save(self, path: Path) -> None:
        """Write as UTF-8, line ends as they are."""
        path.write_text(self.text, encoding="utf-8", newline="")

    @classmethod
    def load(cls, path: Path) -> Note:
        """Read what `save` wrote."""
        return cls(path.read_bytes().decode("utf-8"))
