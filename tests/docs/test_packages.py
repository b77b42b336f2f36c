"""The page on packages names every package."""

from __future__ import annotations

from tests.tree.syntax_trees import ROOT
from tests.tree.test_imports import TABLE


def test_every_package_is_on_the_page() -> None:
    page = (ROOT / "docs" / "packages.md").read_text("utf-8")
    inside = {f"rebinding/{package}/" for package in TABLE if (ROOT / "rebinding" / package).is_dir()}
    beside = {f"{path.parent.name}/" for path in ROOT.glob("*/__init__.py") if path.parent.name != "rebinding"}
    assert len(inside) > 10
    assert {"claims/", "tests/"} <= beside
    assert [package for package in sorted(inside | beside) if f"`{package}`" not in page] == []
