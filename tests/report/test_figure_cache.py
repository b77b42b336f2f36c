"""The store keeps figures: a second page is the same and draws nothing; other evidence or other code draws anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from rebinding.evidence.store import Store
from rebinding.report.figures import draw as figures
from rebinding.report.folder import read
from rebinding.report.page import html
from tests.report.folders import make, make_row


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path / "r", [make_row()])


def record_drawing(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of the figures that are drawn from here on."""
    keys: list[str] = []
    original = figures._draw_group

    def draw(spec: Any, *arguments: Any) -> Any:
        keys.append(spec.key)
        return original(spec, *arguments)

    monkeypatch.setattr(figures, "_draw_group", draw)
    return keys


def test_a_figure_with_a_layout_engine_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A label of two lines of 40 points has its room all the same; without the engine the axes begin before that."""
    figure, draws, original = Figure(layout="constrained"), [], Figure.draw
    axes = figure.subplots()
    axes.set_ylabel("a label\nof two lines", fontsize=40)

    def room() -> float:
        return 72 * float(figure.get_figwidth() * axes.get_position().x0)  # points

    assert room() < 60

    def draw(self: Figure, renderer: Any) -> None:
        draws.append(self)
        original(self, renderer)

    monkeypatch.setattr(Figure, "draw", draw)
    figures.inline(figure, "name", alt="what it shows")
    assert len(draws) == 1
    assert room() > 80


def test_a_second_page_is_the_same_and_draws_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, expected = Store(tmp_path / "store"), html(read(folder))
    keys = record_drawing(monkeypatch)
    assert html(read(folder), store) == expected
    first = len(keys)
    assert first > 0
    assert html(read(folder), store) == expected
    assert len(keys) == first


@pytest.mark.slow
def test_other_evidence_is_drawn_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure of section 3, which the page has if a row of that section ran."""
    folder, store = make(tmp_path / "r", [make_row("tracing.boxes_emerge_after_swap")]), Store(tmp_path / "store")
    before = html(read(folder), store)
    model = read(folder).models[0]
    name, path = next((name, path) for name, path in model.files.items() if name.startswith("diagnostic-3"))
    evidence = model.evidence[name]
    replace(evidence, rows=evidence.rows.assign(change=evidence.rows["change"] * 2)).save(path)
    keys = record_drawing(monkeypatch)
    assert html(read(folder), store) != before
    assert "readout" in keys


@pytest.mark.slow
def test_other_code_draws_anew(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "store")
    html(read(folder), store)
    monkeypatch.setattr(figures, "code_hash", lambda *modules: "another")
    keys = record_drawing(monkeypatch)
    html(read(folder), store)
    assert keys
