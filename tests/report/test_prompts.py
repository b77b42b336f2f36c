"""The pair that a row was run on, as text with its edited tokens marked: in `claims.json`, and on the page."""

from __future__ import annotations

import re
from pathlib import Path

from fixtures.report import example_pair
from rebinding.experiments.prompts import Stories
from rebinding.models import load
from rebinding.report.files import write
from rebinding.report.folder import read
from rebinding.report.page import html
from rebinding.report.tables import pairs
from rebinding.task.designs import design
from tests.report.folders import about, make_row, summary_of

PAIR = {"id": 7, "original": ["Box ", "K", " <b>holds</b>"], "counterfactual": ["Box ", "B", " <b>holds</b>"]}
SINGLE = {"id": 3, "original": ["Box Z"], "counterfactual": None}


def test_texts_are_whole_and_cut_where_tokens_differ() -> None:
    """Against the tokens themselves: what is marked are the words that the design has exchanged, and no others."""
    prompts = Stories(load("planted:pointer@llama").encoder())
    request = prompts.draw(design("published"), range(2), ("pointer", "code"))
    pair = example_pair(prompts, request)
    ((_, original, counterfactual), *_) = prompts.encode(request).pairs
    assert pair["id"] == 0
    assert ("".join(pair["original"]), "".join(pair["counterfactual"])) == (original.text, counterfactual.text)
    marked = [[piece.strip() for piece in pair[name][1::2]] for name in ("original", "counterfactual")]
    assert marked == [["K", "shell", "B", "chemical", "K", "B"], ["B", "wheel", "K", "rock", "B", "K"]]
    assert pair["original"][::2] == pair["counterfactual"][::2]
    single = prompts.draw(design("published"), range(2))
    text = prompts.encode(single).prompts[0].text
    assert example_pair(prompts, single) == {"id": 0, "original": [text], "counterfactual": None}


def folder(path: Path) -> Path:
    """A report with two pieces of evidence that have prompts, and one that has none. No evidence lies there."""
    claims = [make_row("roles.x", evidence=("ability: N 1 #1", "roles: N 1 #2", "directions #3")), make_row("roles.y")]
    description = about("planted:pointer@llama", {}, 4, 2)
    write(path, {}, {}, [description], summary_of(claims))
    return path


def test_pairs_of_a_row(tmp_path: Path) -> None:
    """The pair before the single prompt; a text that several experiments begin with stands once."""
    (model,) = read(folder(tmp_path / "r")).models
    labels = {
        "a #1": ("ability", SINGLE),
        "b #2": ("replays", SINGLE),
        "c #3": ("roles", PAIR),
        "d #4": ("x", None),
    }
    model.about["evidence"] = {
        label: {"file": "x", "kind": kind, "seconds": 1.0, "pair": pair} for label, (kind, pair) in labels.items()
    }
    assert [(pair.id, pair.used_by) for pair in pairs(model, labels)] == [(7, ("roles",)), (3, ("ability", "replays"))]
    assert pairs(model, ["d #4", "nobody knows"]) == ()


def test_a_row_shows_its_pair(tmp_path: Path) -> None:
    """Marked and escaped; a row that rests on no prompts shows none."""
    run = read(folder(tmp_path / "r"))
    path = tmp_path / "r" / "evidence"
    path.mkdir()
    (model,) = run.models
    model.about["evidence"] = {
        "ability: N 1 #1": {"file": "a", "kind": "ability", "seconds": 1.0, "pair": SINGLE},
        "roles: N 1 #2": {"file": "b", "kind": "roles", "seconds": 1.0, "pair": PAIR},
    }
    vars(model)["evidence"] = {}  # none of it is read
    text = html(run)
    (article,) = re.findall(r'<article class="claim" id="roles.x">.*?</article>', text, flags=re.DOTALL)
    assert "Box <mark>K</mark> &lt;b&gt;holds&lt;/b&gt;" in article
    assert "Box <mark>B</mark> &lt;b&gt;holds&lt;/b&gt;" in article
    assert "Box Z" not in article
    (article,) = re.findall(r'<article class="claim" id="roles.y">.*?</article>', text, flags=re.DOTALL)
    assert "<mark>" not in article
    assert text.count("Box Z") == 1, "once, in the list of the section"
