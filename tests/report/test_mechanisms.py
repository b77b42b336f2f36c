"""The top of the page: the answer, why NOT REPLICATED can be correct, then the matrices."""

from __future__ import annotations

from pathlib import Path

import pytest

from rebinding.planted import MECHANISMS
from rebinding.report import headline as mechanisms
from rebinding.report.folder import read
from rebinding.report.headline import Prediction, explain_mechanisms
from rebinding.report.page import PAGE, html
from rebinding.verdicts.judgement import Judgement
from tests.claims.test_plugin import ROWS
from tests.report.folders import make, make_row
from tests.report.test_page import Reader

pytest_plugins = ["pytester"]


def top_of_page(text: str) -> list[str]:
    """Classes of the blocks up to the first matrix, in the order of the page."""
    blocks = [
        attributes.get("class") or "" for tag, attributes in Reader(text).tags if tag in ("section", "table", "details")
    ]
    return [name for name in blocks[: blocks.index("matrix") + 1] if name]


def test_order_of_a_real_report(pytester: pytest.Pytester) -> None:
    """A run of the plugin: nothing but the title stands above the answer."""
    pytester.makepyfile(test_small=ROWS.replace("models=())", "models=(), headline=4)"))
    options = ("--model", "planted:pointer", "--samples", "12", "--no-store", "-p", "no:cacheprovider")
    pytester.runpytest_inprocess("-p", "fixtures.plugin", *options, "--report", "out").assert_outcomes(
        passed=2, failed=2
    )
    text = (pytester.path / "out" / PAGE).read_text("utf-8")
    assert top_of_page(text) == ["headline", "grid", "numbers", "mechanisms numbers", "cards", "matrix"]
    assert (
        0 < text.index("</h1>") < text.index('class="answers"') < text.index("<table") < text.index('id="mechanisms"')
    )
    assert mechanisms.MECHANISMS["pointer"] in " ".join(Reader(text).texts).replace("&#39;", "'")


def claims_of(model: str, **fields: object) -> list[Judgement]:
    """Claim 4 under both procedures."""
    name = "binding.key_dominance"
    return [
        make_row(id, model, headline=4, sentence=name, procedure=procedure, **fields)
        for id, procedure in ((name, "published"), (f"{name}.controlled", "controlled"))
    ]


@pytest.mark.parametrize(
    ("kind", "expected", "blocks"),
    [
        ("planted", "NOT REPLICATED", ["headline", "grid", "numbers", "mechanisms numbers", "cards", "matrix"]),
        ("learned", None, ["headline", "grid", "numbers", "mechanisms numbers", "cards", "matrix"]),
        ("adapter", None, ["headline", "grid", "numbers", "mechanisms numbers", "cards", "matrix"]),
        ("hub", None, ["headline", "grid", "numbers", "cards", "matrix"]),
        ("hub", "REPLICATED", ["headline", "grid", "numbers", "cards", "matrix"]),
    ],
)
def test_models_with_an_explanation(kind: str, expected: str | None, blocks: list[str], tmp_path: Path) -> None:
    claims = claims_of("some model", verdict="NOT REPLICATED", expected=expected)
    assert top_of_page(html(read(make(tmp_path / "r", claims, kind=kind, bare=True)))) == blocks


def test_predictions_are_the_planted_verdicts(tmp_path: Path) -> None:
    """Not the verdicts of the run; the gate of an INVALID row is left out."""
    claims = claims_of("planted:recency@llama")
    claims[1] = make_row(
        claims[1].id, claims[1].model, headline=4, sentence=claims[0].id, expected="INVALID (group_present)"
    )
    (note,) = explain_mechanisms(read(make(tmp_path / "r", claims, bare=True))).notes
    assert note.description == mechanisms.MECHANISMS["recency"]
    assert note.predictions == (Prediction(4, "REPLICATED", "INVALID"),)


@pytest.mark.parametrize("name", ["planted:pointer+held_out@gemma3?boxes=5", "planted:strange", "planted", "x"])
def test_names_of_variants_and_strangers(name: str, tmp_path: Path) -> None:
    """A variant is named; an unknown mechanism has no description."""
    (note,) = explain_mechanisms(read(make(tmp_path / "r", claims_of(name), bare=True))).notes
    assert ("held_out" in note.description) == ("held_out" in name)
    assert bool(note.description) == ("pointer" in name)


def test_every_planted_mechanism_is_described() -> None:
    assert set(mechanisms.MECHANISMS) == set(MECHANISMS)
