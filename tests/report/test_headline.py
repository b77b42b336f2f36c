"""The headline claims on the page and in `claims.json`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rebinding.paper.headlines import HEADLINES
from rebinding.report.files import CLAIMS
from rebinding.report.folder import read
from rebinding.report.headline import MAX_REASON, explain, headline_table
from rebinding.report.page import html
from rebinding.verdicts.judgement import Judgement
from tests.report.folders import make, make_row
from tests.report.test_schema import check_fields

PLANTS = ("planted:pointer@llama", "planted:global@llama")


def rows() -> list[Judgement]:
    """Claim 4 on two models, an artifact on the first and stopped by a gate on the second; claim 5 on the run alone."""
    name, failed_gate = "binding.key_dominance", {"verdict": "INVALID", "gate": "group_present", "measured": None}
    return [
        make_row(name, PLANTS[0], headline=4, sentence=name),
        make_row(f"{name}.controlled", PLANTS[0], headline=4, sentence=name, verdict="NOT REPLICATED"),
        make_row(name, PLANTS[1], headline=4, sentence=name, expected="INVALID (group_present)", **failed_gate),
        make_row("binding.q_redirects", PLANTS[1]),
        make_row("binding.families_differ", "the run as a whole", headline=5, expected=None),
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path / "r", rows(), bare=True)


def test_every_headline_claim_is_in_the_file(folder: Path) -> None:
    content = json.loads((folder / CLAIMS).read_text())
    assert [entry["model"] for entry in content["headline"]] == [*PLANTS, "the run as a whole"]
    for model in content["headline"]:
        for claim in model["claims"]:
            check_fields(claim, "headline")
    first, second, run = (entry["claims"] for entry in content["headline"])
    assert [
        (claim["number"], claim["published"], claim["controlled"], claim["standing"])
        for claim in (*first, *second, *run)
    ] == [
        (4, "REPLICATED", "NOT REPLICATED", "artifact"),
        (4, "INVALID", None, None),
        (5, "REPLICATED", None, None),
    ]
    assert first[0]["rows"] == ["binding.key_dominance", "binding.key_dominance.controlled"]
    assert [claim["as_expected"] for claim in (*first, *second)] == [False, True]
    numbers = {(row["id"], row["model"]): row["headline"] for row in content["claims"]}
    assert numbers["binding.key_dominance", PLANTS[1]] == 4
    assert numbers["binding.q_redirects", PLANTS[1]] is None


def test_a_claim_that_was_not_judged_on_a_model_has_an_empty_cell(folder: Path) -> None:
    table = headline_table(read(folder).summary)
    assert [row.headline for row in table.rows] == list(HEADLINES[3:])
    assert [[cell.verdict is not None for cell in row.cells] for row in table.rows] == [
        [True, True, False],
        [False, False, True],
    ]


def test_each_verdict_has_its_row_and_a_reason(folder: Path) -> None:
    """A planted model's reason is its mechanism, unless another verdict came out: then the numbers explain it."""
    text = html(read(folder))
    (section,) = re.findall(r'<section class="headline".*?</section>', text, flags=re.DOTALL)
    cells = re.findall(r"<td>(.*?)</td>", section, flags=re.DOTALL)
    words = [" ".join(re.sub(r"<[^>]*>", " ", cell).split()) for cell in cells]
    assert words[:3] == [
        "artifact ✓ REPLICATED published binding.key_dominance : 1 [0.9, 1.1] Query and key meet in one slot code."
        " ✗ NOT REPLICATED controlled binding.key_dominance.controlled : 1 [0.9, 1.1]"
        " 1 in [0.9, 1.1] against 0 +- 0.2: surely greater"
        " differs from what was planted: binding.key_dominance.controlled",
        "! INVALID (group_present) published binding.key_dominance Query and key meet in one slot code.",
        "not judged",
    ]
    assert set(re.findall(r'href="#([^"]*)"', section)) == {
        "binding.key_dominance",
        "binding.key_dominance.controlled",
        "binding.families_differ",
    }


def test_without_headline_rows_there_is_no_table(tmp_path: Path) -> None:
    folder = make(tmp_path / "r", [make_row()], bare=True)
    assert 'id="headline"' not in html(read(folder))
    assert json.loads((folder / CLAIMS).read_text())["headline"] == []


def test_a_reason_is_given_once_per_cell(tmp_path: Path) -> None:
    name = "binding.key_dominance"
    claims = [make_row(name, headline=4, sentence=name), make_row(f"{name}.controlled", headline=4, sentence=name)]
    table = headline_table(read(make(tmp_path / "r", claims, bare=True)).summary)
    (cell,) = table.rows[0].cells
    assert [line.reason for line in cell.procedures] == [claims[0].because, ""]


def test_a_long_reason_is_shortened() -> None:
    reason = explain(make_row(because=None, reason="word " * 100))
    assert len(reason) <= MAX_REASON
    assert reason.endswith(" ...")


def test_what_stands_in_the_list_is_not_read_again(folder: Path) -> None:
    """docs/decisions/claims-json.md: the page follows from the rows."""
    path, before = folder / CLAIMS, html(read(folder))
    content = json.loads(path.read_text())
    content["headline"][0]["claims"][0]["published"] = "INCONCLUSIVE"
    path.write_text(json.dumps(content))
    assert html(read(folder)) == before
