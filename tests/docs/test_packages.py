"""The page on packages names every package."""

from __future__ import annotations

from tests.tree.syntax_trees import ROOT
from tests.tree.test_imports import TABLE


def test_every_package_is_on_the_page() -> None:
    page = (ROOT / "docs" / "packages.md").read_text("utf-8")
    code_packages = {f"rebinding/{package}/" for package in TABLE if (ROOT / "rebinding" / package).is_dir()}
    test_packages = {f"{path.parent.name}/" for path in ROOT.glob("*/__init__.py") if path.parent.name != "rebinding"}
    assert len(code_packages) > 10
    assert {"claims/", "tests/"} <= test_packages
    assert [package for package in sorted(code_packages | test_packages) if f"`{package}`" not in page] == []
