"""List the files of a store."""

from __future__ import annotations

from pathlib import Path

SUFFIXES = (".parquet", ".safetensors", ".txt")


def shards(root: Path, *suffixes: str) -> list[Path]:
    """The shards of a store, in an order that does not depend on the disk."""
    return sorted(path for path in root.rglob("*") if path.suffix in (suffixes or SUFFIXES))


def content(root: Path) -> dict[str, bytes]:
    """Every file of a store, but for locks, which are empty and stay, and for what had to make room."""
    files = (path for path in root.rglob("*") if path.is_file() and path.suffix != ".lock")
    paths = (path for path in files if not any(part.endswith(".aside") for part in path.parts))
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}
