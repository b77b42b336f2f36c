"""The path diagram says what a group costs the answer; the graph of a search and the paper's heads are on the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from rebinding.experiments.paths.figures import LINKS, draw_links, strength
from rebinding.experiments.paths.request import PATHS
from rebinding.paper.numbers import ALIASES, checkpoint
from rebinding.report.folder import Model, read
from rebinding.report.page import html
from rebinding.report.tables import heads
from tests.report.folders import judged, linked, make


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return read(make(tmp_path / "r", [judged()])).models[0]


def said(model: Any) -> list[str]:
    """The lettering of the diagram."""
    figure = draw_links(model)
    assert figure is not None
    return [text.get_text() for text in figure.axes[0].texts]


def test_strength_is_what_all_heads_together_cost() -> None:
    """By hand: the lead falls from 9 to 4, 3, 2, 1 and 0; a second head costs two logits on every prompt."""
    one = linked(0.0)
    found = strength(one, [(3, 0)])
    assert found.mean == pytest.approx(7.0, abs=1e-12)  # sums of small whole numbers, but for a division
    assert found.low < 7 < found.high
    more = one.rows.assign(head=1, lead_patch=7.0)
    both = replace(one, rows=pd.concat([one.rows, more], ignore_index=True))
    assert strength(both, [(3, 0), (3, 1)]).mean == pytest.approx(9.0, abs=1e-12)


def test_what_was_measured_stands_on_its_arrow(model: Model) -> None:
    """Of the group alone as sender; scores of all heads, as discovery has them, are no strength of a link."""
    told = said(model)
    assert sum(text.endswith("not measured") for text in told) == len(LINKS) - 1
    (direct,) = [text for text in told if text.startswith("direct")]
    assert direct.startswith("direct: 7.00 [")
    assert "readout\nheads: 1" in told
    assert "none" in told, "there is no group E"
    model.about["circuit"][0][2] = 1  # another head is judged than the one that was run
    assert draw_links(model) is None


def test_of_two_runs_of_a_link_the_controlled_one_is_shown(model: Model) -> None:
    """The published procedure runs links, too: other heads frozen or not, and with another noise."""
    link = next(one for one in model.of(PATHS).values() if one.settings["facets"].get("senders") == 1)
    ways = {"rotation": ("all", 3.0), "fresh": ("none", 2.0), "independent": ("all", 0.0), "objects": ("all", 1.0)}
    runs = {
        noise: replace(
            link,
            rows=link.rows.assign(lead_patch=link.rows["lead_patch"] - more),
            settings={"facets": {**link.settings["facets"], "noise": noise, "frozen": frozen}},
        )
        for noise, (frozen, more) in ways.items()
    }
    shown = SimpleNamespace(about=model.about, of=lambda kind: runs)
    (direct,) = [text for text in said(shown) if text.startswith("direct")]
    assert direct.startswith("direct: 7.00 [")


@pytest.mark.slow
def test_a_graph_is_drawn_where_there_is_one(tmp_path: Path) -> None:
    claims = [judged(), judged(model="another")]
    run = read(make(tmp_path / "r", claims))
    for one, there in zip(run.models, (True, False), strict=True):
        one.about["graph"] = one.about["graph"] if there else None
    text = html(run)
    assert text.count("What position-free discovery finds</h3>") == 1
    assert "2 nodes, 2 edges" in text
    for one in run.models:
        one.about["graph"] = None
    assert "What position-free discovery finds" not in html(run)


def test_the_table_of_heads_has_the_papers_four_models(tmp_path: Path) -> None:
    """Judged or not, beside what is judged here."""
    table = heads(read(make(tmp_path / "r", [judged()])))
    printed = [row for row in table.rows if row.names[1] == "printed"]
    assert [row.names[0] for row in printed] == [checkpoint(alias).paper_name for alias in ALIASES]
    assert all(row.cells[0] != "none" for row in printed)
    assert [row.names[1] for row in table.rows][:2] == ["judged", "discovered here"]
