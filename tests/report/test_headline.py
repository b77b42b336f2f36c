"""The headline claims on the page and in `claims.json`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rebinding.paper.headlines import HEADLINES
from rebinding.report.files import CLAIMS
from rebinding.report.folder import read
from rebinding.report.headline import headline_table
from rebinding.report.page import html
from rebinding.verdicts.judgement import Judgement
from tests.report.folders import judged, make
from tests.report.test_schema import fits

PLANTS = ("planted:pointer@llama", "planted:global@llama")


def rows() -> list[Judgement]:
    """Claim 4 on two models, an artifact on the first and stopped by a gate on the second; claim 5 on the run alone."""
    name, gone = "binding.key_dominance", {"verdict": "INVALID", "gate": "group_present", "measured": None}
    return [
        judged(name, PLANTS[0], headline=4, sentence=name),
        judged(f"{name}.controlled", PLANTS[0], headline=4, sentence=name, verdict="NOT REPLICATED"),
        judged(name, PLANTS[1], headline=4, sentence=name, expected="INVALID (group_present)", **gone),
        judged("binding.q_redirects", PLANTS[1]),
        judged("binding.families_differ", "the run as a whole", headline=5, expected=None),
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path / "r", rows(), bare=True)


def test_every_headline_claim_is_in_the_file(folder: Path) -> None:
    content = json.loads((folder / CLAIMS).read_text())
    assert [one["model"] for one in content["headline"]] == [*PLANTS, "the run as a whole"]
    for model in content["headline"]:
        for claim in model["claims"]:
            fits(claim, "headline")
    first, second, run = (one["claims"] for one in content["headline"])
    assert [
        (one["number"], one["published"], one["controlled"], one["standing"]) for one in (*first, *second, *run)
    ] == [
        (4, "REPLICATED", "NOT REPLICATED", "artifact"),
        (4, "INVALID", None, None),
        (5, "REPLICATED", None, None),
    ]
    assert first[0]["rows"] == ["binding.key_dominance", "binding.key_dominance.controlled"]
    assert [one["as_expected"] for one in (*first, *second)] == [False, True]
    numbers = {(row["id"], row["model"]): row["headline"] for row in content["claims"]}
    assert numbers["binding.key_dominance", PLANTS[1]] == 4
    assert numbers["binding.q_redirects", PLANTS[1]] is None


def test_a_claim_that_was_not_judged_on_a_model_has_an_empty_cell(folder: Path) -> None:
    table = headline_table(read(folder).summary)
    assert [row.headline for row in table.rows] == list(HEADLINES[3:])
    assert [[found is not None for _, found in row.cells] for row in table.rows] == [
        [True, True, False],
        [False, False, True],
    ]


def test_the_first_table_of_the_page(folder: Path) -> None:
    """It stands above the models, and its cells lead to the rows that decide."""
    text = html(read(folder))
    (section,) = re.findall(r'<section class="headline".*?</section>', text, flags=re.DOTALL)
    assert text.index('class="headline"') < text.index('class="cards"')
    cells = re.findall(r"<td>(.*?)</td>", section, flags=re.DOTALL)
    words = [" ".join(re.sub(r"<[^>]*>", " ", cell).split()) for cell in cells]
    assert words[:3] == [
        "✓ REPLICATED published ✗ NOT REPLICATED controlled artifact decided by binding.key_dominance : 1 [0.9, 1.1]"
        " differs from what was planted: binding.key_dominance.controlled",
        "! INVALID published decided by binding.key_dominance (group_present)",
        "not judged",
    ]
    assert set(re.findall(r'href="#([^"]*)"', section)) == {"binding.key_dominance", "binding.families_differ"}


def test_without_headline_rows_there_is_no_table(tmp_path: Path) -> None:
    folder = make(tmp_path / "r", [judged()], bare=True)
    assert 'id="headline"' not in html(read(folder))
    assert json.loads((folder / CLAIMS).read_text())["headline"] == []


def test_what_stands_in_the_list_is_not_read_again(folder: Path) -> None:
    """docs/decisions/claims-json.md: the page follows from the rows."""
    path, before = folder / CLAIMS, html(read(folder))
    content = json.loads(path.read_text())
    content["headline"][0]["claims"][0]["published"] = "INCONCLUSIVE"
    path.write_text(json.dumps(content))
    assert html(read(folder)) == before
