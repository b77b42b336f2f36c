"""The page on evaluating a circuit, run on the real model; and what a screen drops there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rebinding
from tests.docs.examples import check_words, examples, printed

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "evaluate-a-circuit.md"
SHARE, LAST_DIGIT = 5e-2, 3e-2
"""Of numbers printed with two decimals, on another processor: Q4 weights, thirty layers in float32, and shares of
differences."""


@pytest.fixture
def text(smollm2_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("REBINDING_SMOLLM2", str(smollm2_file))
    monkeypatch.chdir(tmp_path)
    return PAGE.read_text("utf-8")


def test_the_page_prints_what_is_shown(text: str, tmp_path: Path) -> None:
    for output, (_, expected) in zip(printed(text), examples(text), strict=True):
        check_words(output, expected, SHARE, LAST_DIGIT)
    assert {path.name for path in tmp_path.glob("*.png")} == {"curve.png", "sensitivity.png"}


def test_edge_attribution_keeps_what_the_whole_search_finds(text: str) -> None:
    """Heads and MLPs, on 16 pairs of the page, as its table says: every node, and the effects on edges."""
    names: dict[str, Any] = {}
    exec(examples(text)[0][0], names)
    whole, screened = (
        rebinding.discover(names["model"], names["pairs"][:16], positions="all", share=0.05, mlps=True, screen=screen)
        for screen in ("none", "edge-attribution")
    )
    effects, kept = ({edge[:3]: abs(edge.effect) for edge in graph.edges} for graph in (whole, screened))
    assert len(whole.nodes) > 3
    assert set(whole.nodes) <= set(screened.nodes)
    assert sum(effects[ends] for ends in effects.keys() & kept.keys()) > 0.97 * sum(effects.values())
