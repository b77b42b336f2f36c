"""The page on what lives where names every room."""

from __future__ import annotations

from tests.tree.syntax_trees import ROOT
from tests.tree.test_imports import TABLE


def test_every_room_stands_on_the_page() -> None:
    told = (ROOT / "docs" / "rooms.md").read_text("utf-8")
    inside = {f"rebinding/{room}/" for room in TABLE if (ROOT / "rebinding" / room).is_dir()}
    beside = {f"{one.parent.name}/" for one in ROOT.glob("*/__init__.py") if one.parent.name != "rebinding"}
    assert len(inside) > 10
    assert {"claims/", "tests/"} <= beside
    assert [room for room in sorted(inside | beside) if f"`{room}`" not in told] == []
