"""Figures that were drawn before: the same page, and no line drawn twice; other evidence is drawn anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rebinding.evidence.store import Store
from rebinding.report import figures
from rebinding.report.folder import read
from rebinding.report.page import html
from tests.report.folders import judged, make


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path / "r", [judged()])


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The figures that are drawn from here on, by plate."""
    drawn: list[str] = []
    plain = figures._draw

    def draw(plate: Any, *given: Any) -> Any:
        drawn.append(plate.key)
        return plain(plate, *given)

    monkeypatch.setattr(figures, "_draw", draw)
    return drawn


def test_a_second_page_draws_nothing_and_is_the_same(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, without = Store(tmp_path / "store"), html(read(folder))
    drawn = counted(monkeypatch)
    assert html(read(folder), store) == without
    first = len(drawn)
    assert first > 0
    assert html(read(folder), store) == without
    assert len(drawn) == first


@pytest.mark.slow
def test_other_evidence_is_drawn_anew(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "store")
    before = html(read(folder), store)
    model = read(folder).models[0]
    name, path = next((name, path) for name, path in model.files.items() if name.startswith("diagnostic-3"))
    found = model.evidence[name]
    replace(found, rows=found.rows.assign(change=found.rows["change"] * 2)).save(path)
    drawn = counted(monkeypatch)
    assert html(read(folder), store) != before
    assert "readout" in drawn


@pytest.mark.slow
def test_other_source_draws_anew(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "store")
    html(read(folder), store)
    monkeypatch.setattr(figures, "code_hash", lambda *modules: "another")
    drawn = counted(monkeypatch)
    html(read(folder), store)
    assert drawn
