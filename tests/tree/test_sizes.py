"""A file is about one idea, and fits a reader's head."""

from __future__ import annotations

from tests.tree.syntax_trees import ROOT

MAXIMUM = 450
FOLDERS = ("rebinding", "claims", "fixtures", "tests", "benchmarks", "browser", "cluster", "peers")


def test_no_file_is_too_long() -> None:
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert len(paths) > 100
    lengths = {str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in paths}
    assert not {name: count for name, count in lengths.items() if count > MAXIMUM}
