"""The page on evaluating a circuit, run on the real model; and how much a screen drops there."""

from __future__ import annotations

from pathlib import Path

import pytest

import rebinding
from rebinding import Pairs
from rebinding.models import LoadedModel
from tests.docs.examples import check_words, examples, printed

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "evaluate-a-circuit.md"
SHARE, LAST_DIGIT = 5e-2, 3e-2
"""Of numbers printed with two decimals, on another processor: Q4 weights, thirty layers in float32, and shares of
differences."""
TEMPLATE = "When {first} and {second} went to the store, {giver} gave a book to"
WORDS = (
    "Mary John Anna",
    "Tom Sarah Peter",
    "Kate Paul Lucy",
    "Adam Alice Simon",
    "Mark Laura James",
    "Emma Jack David",
)


def test_the_page_prints_what_is_shown(smollm2_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REBINDING_SMOLLM2", str(smollm2_file))
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text("utf-8")
    for output, (_, expected) in zip(printed(text), examples(text), strict=True):
        check_words(output, expected, SHARE, LAST_DIGIT)
    assert {path.name for path in tmp_path.glob("*.png")} == {"curve.png", "sensitivity.png"}


@pytest.mark.parametrize("mlps", [False, True])
def test_edge_attribution_keeps_what_the_whole_search_finds(smollm2: LoadedModel, mlps: bool) -> None:
    """On twelve pairs: every node of the search without a screen, and nine tenths of the effects on its edges."""
    model = rebinding.Model(smollm2)
    orders = [names.split() for names in WORDS] + [names.split()[1:] + names.split()[:1] for names in WORDS]
    rows = [dict(zip(("first", "second", "giver"), (one, two, two), strict=True)) for one, two, _ in orders]
    rows = [{**row, "giver": row["first"] if number % 2 else row["second"]} for number, row in enumerate(rows)]
    rows = [{**row, "right": row["second"] if number % 2 else row["first"]} for number, row in enumerate(rows)]
    shifted = [*rows[5:], *rows[:5]]
    noise = [
        {**row, "first": other["first"], "second": other["second"], "giver": orders[number][2]}
        for number, (row, other) in enumerate(zip(rows, shifted, strict=True))
    ]
    clean, others = (model.fill(TEMPLATE, part, answers=(" {right}", " {giver}")) for part in (rows, noise))
    graphs = [
        rebinding.discover(model, Pairs(clean, others), positions="all", share=0.1, mlps=mlps, screen=screen)
        for screen in ("none", "edge-attribution")
    ]
    whole, screened = ({edge[:3]: abs(edge.effect) for edge in graph.edges} for graph in graphs)
    assert len(graphs[0].nodes) > 1
    assert set(graphs[0].nodes) <= set(graphs[1].nodes)
    assert sum(whole[ends] for ends in whole.keys() & screened.keys()) >= 0.9 * sum(whole.values())
