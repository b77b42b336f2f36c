"""Several files are put in place all or none: an error leaves the old files, and no temporary ones."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from rebinding.evidence.shards import put_in_place, write_text


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    files = [tmp_path / "a.parquet", tmp_path / "b.json", tmp_path / "c.txt"]
    for path in files:
        path.write_text("old")
    return files


def test_all_files_are_put_in_place(paths: list[Path]) -> None:
    put_in_place({path: lambda part: write_text(part, "new") for path in paths})
    assert [path.read_text() for path in paths] == ["new"] * 3
    assert sorted(paths[0].parent.iterdir()) == sorted(paths)


def test_none_is_put_in_place_where_one_cannot_be_written(paths: list[Path]) -> None:
    def write_half(part: Path) -> None:
        part.write_text("ne")
        raise OSError(errno.ENOSPC, "No space left on device")

    writers = dict.fromkeys(paths, lambda part: write_text(part, "new"))
    with pytest.raises(OSError, match="No space left") as excinfo:
        put_in_place({**writers, paths[1]: write_half})
    assert excinfo.value.filename == str(paths[1])
    assert [path.read_text() for path in paths] == ["old"] * 3
    assert sorted(paths[0].parent.iterdir()) == sorted(paths)
