"""The path diagram shows the effect of a group on the answer; the page has the search graph and the paper's heads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from rebinding.experiments.paths.request import PATHS
from rebinding.paper.numbers import ALIASES, checkpoint
from rebinding.report.figures.circuits import LINKS, draw_links, strength
from rebinding.report.folder import ReportedModel, read
from rebinding.report.page import html
from rebinding.report.tables import heads
from tests.report.folders import make, make_link, make_row


@pytest.fixture
def model(tmp_path: Path) -> ReportedModel:
    return read(make(tmp_path / "r", [make_row()])).models[0]


def texts_of_diagram(model: Any) -> list[str]:
    """The texts in the diagram."""
    figure = draw_links(model)
    assert figure is not None
    return [text.get_text() for text in figure.axes[0].texts]


def test_strength_is_the_sum_over_heads() -> None:
    """By hand: the lead falls from 9 to 4, 3, 2, 1 and 0; a second head costs two logits on every prompt."""
    single = make_link(0.0)
    estimate = strength(single, [(3, 0)])
    assert estimate.mean == pytest.approx(7.0, abs=1e-12)  # sums of small whole numbers, but for a division
    assert estimate.low < 7 < estimate.high
    second = single.rows.assign(head=1, lead_patch=7.0)
    both = replace(single, rows=pd.concat([single.rows, second], ignore_index=True))
    assert strength(both, [(3, 0), (3, 1)]).mean == pytest.approx(9.0, abs=1e-12)


def test_an_arrow_shows_its_measured_strength(model: ReportedModel) -> None:
    """With the group alone as sender; discovery's scores of all heads are no strength of a link."""
    texts = texts_of_diagram(model)
    assert sum(text.endswith("not measured") for text in texts) == len(LINKS) - 1
    (direct,) = [text for text in texts if text.startswith("direct")]
    assert direct.startswith("direct: 7.00 [")
    assert "readout\nheads: 1" in texts
    assert "none" in texts, "there is no group E"
    model.about["circuit"][0][2] = 1  # another head is judged than the one that was run
    assert draw_links(model) is None


def test_the_controlled_run_of_a_link_is_shown(model: ReportedModel) -> None:
    """The published procedure runs links too: other heads frozen or not, and with another noise."""
    link = next(piece for piece in model.find_evidence(PATHS).values() if piece.settings["facets"].get("senders") == 1)
    conventions = {
        "rotation": ("all", 3.0),
        "fresh": ("none", 2.0),
        "independent": ("all", 0.0),
        "objects": ("all", 1.0),
    }
    runs = {
        noise: replace(
            link,
            rows=link.rows.assign(lead_patch=link.rows["lead_patch"] - loss),
            settings={"facets": {**link.settings["facets"], "noise": noise, "frozen": frozen}},
        )
        for noise, (frozen, loss) in conventions.items()
    }
    model_of_runs = SimpleNamespace(about=model.about, find_evidence=lambda kind: runs)
    (direct,) = [text for text in texts_of_diagram(model_of_runs) if text.startswith("direct")]
    assert direct.startswith("direct: 7.00 [")


@pytest.mark.slow
def test_a_search_graph_is_drawn_if_there_is_one(tmp_path: Path) -> None:
    """Among the figures of section 4.1, which the page has if a row of that section ran."""
    chain = "circuit.chain.A_logits"
    run = read(make(tmp_path / "r", [make_row(chain), make_row(chain, model="another")]))
    for model, has_graph in zip(run.models, (True, False), strict=True):
        model.about["graph"] = model.about["graph"] if has_graph else None
    text = html(run)
    assert text.count("What position-free discovery finds</h3>") == 1
    assert "2 nodes, 2 edges" in text
    for model in run.models:
        model.about["graph"] = None
    assert "What position-free discovery finds" not in html(run)


def test_the_table_of_heads_has_the_papers_four_models(tmp_path: Path) -> None:
    """Judged or not, below the circuit under test and the one that this run discovers."""
    table = heads(read(make(tmp_path / "r", [make_row()])))
    printed = [row for row in table.rows if row.names[1] == "printed"]
    assert [row.names[0] for row in printed] == [checkpoint(alias).paper_name for alias in ALIASES]
    assert all(row.cells[0] != "none" for row in printed)
    assert [row.names[1] for row in table.rows][:2] == ["circuit under test", "discovered in this run"]
