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
from tests.report.folders import make, make_row, summary_of
from tests.report.test_schema import check_fields

PLANTS = ("planted:pointer@llama", "planted:global@llama")


def rows() -> list[Judgement]:
    """Claim 4 on two models, an artifact on the first and stopped by a gate on the second; claim 5 on the run alone."""
    name, numbers = "binding.key_dominance", dict.fromkeys(("measured", "low", "high", "margin", "n"))
    stopped = {"verdict": "INVALID", "gate": "group_present", "expected": "INVALID (group_present)", **numbers}
    return [
        make_row(name, PLANTS[0], headline=4, sentence=name),
        make_row(f"{name}.controlled", PLANTS[0], headline=4, sentence=name, verdict="NOT REPLICATED"),
        make_row(name, PLANTS[1], headline=4, sentence=name, **stopped),
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


def headline_section(folder: Path) -> str:
    text = html(read(folder))
    (section,) = re.findall(r'<section class="headline".*?</section>', text, flags=re.DOTALL)
    return str(section)


def texts(section: str, tag: str) -> list[str]:
    """The text of every element with this tag."""
    found = re.findall(rf"<{tag}\b[^>]*>(.*?)</{tag}>", section, flags=re.DOTALL)
    return [" ".join(re.sub(r"<[^>]*>", " ", text).split()) for text in found]


def test_the_grid_has_a_cell_for_each_claim_and_model(folder: Path) -> None:
    """Each procedure with its mark, a link to its row, and the number as published or the gate that failed."""
    section = headline_section(folder)
    assert texts(section, "td")[:3] == [
        f"{PLANTS[0]} artifact ✓ published : REPLICATED ✗ controlled : NOT REPLICATED 1 [0.9, 1.1]"
        " differs from what was planted: binding.key_dominance.controlled",
        f"{PLANTS[1]} ! published : INVALID gate group_present",
        "the run as a whole no row in this run",
    ]
    assert set(re.findall(r'href="#([^"]*)"', section)) == {
        "binding.key_dominance",
        "binding.key_dominance.controlled",
        "binding.families_differ",
    }


def test_each_verdict_has_its_numbers_and_a_reason(folder: Path) -> None:
    """A planted model's reason is its mechanism, unless another verdict came out: then the numbers explain it."""
    lines = texts(headline_section(folder), "dd")
    assert lines[:3] == [
        "binding.key_dominance : 1 [0.9, 1.1], margin ±0.2, 60 prompts Query and key meet in one slot code.",
        "binding.key_dominance.controlled : 1 [0.9, 1.1], margin ±0.2, 60 prompts"
        " 1 in [0.9, 1.1] against 0 +- 0.2: surely greater",
        "binding.key_dominance Query and key meet in one slot code.",
    ]


def test_an_artifact_is_explained_by_its_controlled_row(folder: Path) -> None:
    assert f"Why claim 4 is an artifact on {PLANTS[0]}: 1 in [0.9, 1.1] against 0 +- 0.2: surely greater" in texts(
        headline_section(folder), "p"
    )


@pytest.mark.parametrize(
    ("published", "controlled", "sentence"),
    [
        ("REPLICATED", "REPLICATED", "Robust, under both procedures: claim 4."),
        ("REPLICATED", "NOT REPLICATED", "Artifact, as published only: claim 4."),
        ("NOT REPLICATED", "REPLICATED", "Hidden, when controlled only: claim 4."),
        ("NOT REPLICATED", "NOT REPLICATED", "Refuted, under both procedures: claim 4."),
        ("REPLICATED", "INCONCLUSIVE", "Replicated as published, inconclusive when controlled: claim 4."),
        ("INVALID", "INVALID", "Invalid under both procedures: claim 4."),
        ("REPLICATED", None, "Replicated as published: claim 4."),
    ],
)
def test_the_answer_on_a_model_is_a_sentence(published: str, controlled: str | None, sentence: str) -> None:
    """Whether it was expected stands behind it."""
    name, fields = "binding.key_dominance", {"headline": 4, "sentence": "binding.key_dominance", "gate": None}
    claims = [
        make_row(name, verdict=published, expected=published, **fields),
        make_row("circuit.compact", verdict="INVALID"),
    ]
    if controlled is not None:
        claims.append(make_row(f"{name}.controlled", verdict=controlled, expected="REPLICATED", **fields))
    (answer,) = headline_table(summary_of(claims)).answers
    assert answer.sentences == (sentence,)
    as_planted = controlled in (None, "REPLICATED")
    assert answer.expectation == (
        "All as its mechanism predicts." if as_planted else "Not as its mechanism predicts: claim 4."
    )


def test_claims_with_the_same_answer_share_a_sentence() -> None:
    claims = [make_row(f"other.{n}", headline=n, verdict="REPLICATED") for n in (1, 3, 4)]
    (answer,) = headline_table(summary_of(claims)).answers
    assert answer.sentences == ("Replicated as published: claims 1, 3 and 4.",)


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
