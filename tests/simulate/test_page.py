"""The page in the docs has the counts of a simulated run; rows that their N cannot decide have a note everywhere."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from claims.catalogue import by_id, catalogue, catalogue_of_runs
from fixtures.verdict_table import table
from rebinding.paper import claim as module
from rebinding.paper.claim import AGAINST, SHORT, label, undecided
from rebinding.paper.numbers import ALIASES, contradictions
from rebinding.simulate.rates import ALL_MODELS, ENOUGH, Rates, below_target
from rebinding.simulate.table import absent, as_csv, page, text
from rebinding.simulate.worlds import world
from rebinding.verdicts import Verdict
from rebinding.verdicts.judgement import judgement
from tests.report.folders import summary_of
from tests.simulate.studies import judge_row, make_study

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "power.md").read_text("utf-8")
LISTED_ROWS = set(re.findall(r"^\* `([\w.]+)` on ([\w.-]+): ", PAGE, flags=re.MULTILINE))
SURE = (
    ("gemma2-9b", "binding.qk_cancels"),
    ("gemma2-9b", "circuit.recovers_most"),
    ("gemma2-9b", "roles.b_is_the_pointer"),
    ("llama3.1-8b", "circuit.margins.circuit"),
)
"""Rows that come out the same way in every sample, two of them on the list and two not."""


@pytest.mark.parametrize(("model", "id"), SURE)
def test_the_list_on_the_page_is_up_to_date(model: str, id: str) -> None:
    verdicts = Counter(judge_row(id, make_study(world("paper", model), seed=seed)) for seed in (0, 1))
    rates = Rates(id, model, 300, True, 2, outcomes={"paper": verdicts})
    assert (rates in below_target([rates])) == ((id, model) in LISTED_ROWS)


def test_every_row_stands_in_the_table_once_for_every_model() -> None:
    table = [*csv.DictReader((DOCS / "power.csv").read_text("utf-8").splitlines())]
    for model in ALIASES:
        assert sorted(line["row"] for line in table if line["model"] == model) == sorted(
            row.claim.id for row in catalogue()
        )


def test_the_page_has_the_headline_rows_of_the_table() -> None:
    for model in ALIASES:
        part = PAGE.partition(f"## {model}\n")[2].partition("\n## ")[0]
        shown = re.findall(r"^\| ([a-z][\w.]+\.[\w.]+) \|", part, flags=re.MULTILINE)
        shown += re.findall(r"`([a-z][\w.]+)`", part.partition("Not simulated, or not judged here:")[2])
        assert sorted(shown) == sorted(row.claim.id for row in catalogue() if row.claim.headline is not None)


def test_the_page_has_the_asserted_headline_rows_in_every_harder_world() -> None:
    part = PAGE.partition("## Headline rows in other worlds\n")[2].partition("\n## ")[0]
    files = sorted(file.stem for file in Path(__file__).with_name("harder").iterdir())
    (columns,) = re.findall(r"^\| row \| model \| paper \| (.*) \|$", part, flags=re.MULTILINE)
    assert sorted(columns.split(" | ")) == files
    headline = {row.claim.id for row in (*catalogue(), *catalogue_of_runs()) if row.claim.headline is not None}
    table = csv.DictReader((DOCS / "power.csv").read_text("utf-8").splitlines())
    asserted = {(line["row"], line["model"]) for line in table if line["asserted"] == "yes" and line["runs"]}
    shown = re.findall(r"^\| ([a-z][\w.]+\.[\w.]+) \| ([\w.-]+) \|", part, flags=re.MULTILINE)
    assert sorted(shown) == sorted((row, model) for row, model in asserted if row in headline)


def test_listed_rows_are_asserted() -> None:
    asserted = {(row.claim.id, model) for row in catalogue() for model in row.claim.models}
    assert LISTED_ROWS
    assert asserted >= LISTED_ROWS


def test_a_table_has_every_row() -> None:
    """A row with rates, one that is never replicated, one that does not apply, and one that could not be drawn."""
    outcomes = {"a.holds": "REPLICATED", "a.fails": "NOT REPLICATED", "a.elsewhere": "NOT APPLICABLE"}
    rates = [
        Rates(
            name,
            "gemma2-9b",
            300,
            True,
            2,
            headline=True,
            outcomes={"paper": Counter({verdict: 2})},
            sufficient=[300, 300],
        )
        for name, verdict in outcomes.items()
    ]
    rates.append(Rates("a.unknown", "gemma2-9b", 300, True, 2, headline=True, not_simulated="tracing"))
    assert [row.row for row in below_target(rates)] == ["a.fails"]
    reasons = {"not judged on this model, or only reported": ["a.elsewhere"], "not simulated: tracing": ["a.unknown"]}
    assert absent(rates) == reasons
    lines = list(page("pytest claims --simulate paper", 2, 0, rates, ["paper"]))
    assert "| a.holds | 300 | 2 | yes | R 100 | 16 to 100 | up to 300 |" in lines
    assert "| a.fails | 300 | 2 | yes | N 100 | 0 to 84 | - |" in lines
    others = [replace(row, headline=False) for row in rates]
    assert "| a.holds |" not in "\n".join(page("pytest claims --simulate paper", 2, 0, others, ["paper"]))
    table = [*csv.DictReader(as_csv(others, ["paper"]).splitlines())]
    assert [line["row"] for line in table] == [*outcomes, "a.unknown"]
    assert (table[0]["if the paper is right"], table[-1]["no rates"]) == ("R 100", "not simulated: tracing")
    assert all("\n".join(lines).count(row.row) >= 1 for row in rates)
    assert all("\n".join(text("gemma2-9b", rates, ["paper"])).count(row.row) == 1 for row in rates)


def test_single_world_has_one_column() -> None:
    refuted = {"rival": Counter({"NOT REPLICATED": 1})}
    rates = [Rates("a.holds", "gemma2-9b", 300, True, 1, headline=True, outcomes=refuted)]
    lines = "\n".join(page("pytest claims --simulate rival", 1, 0, rates, ["rival"]))
    assert "| row | N | runs | asserted | if the rival is | N, 95 % interval |\n" in lines
    assert "if the paper is right" not in lines
    assert "replicate too seldom" not in lines


def test_worlds_from_files_stand_beside_the_papers() -> None:
    outcomes = {"paper": Counter({"REPLICATED": 2}), "own": Counter({"INVALID": 2})}
    rates = [Rates("a.holds", "gemma2-9b", 300, True, 2, headline=True, outcomes=outcomes)]
    lines = [*page("", 2, 0, rates, ["paper", "own"])]
    assert {"| row | model | paper | own |", "| a.holds | gemma2-9b | R 100 | X 100 |"} <= {*lines}
    assert "## Headline rows in other worlds" not in page("", 2, 0, rates, ["paper"])


def test_counts_travel_as_json() -> None:
    counts: dict[str, Counter[str]] = {"paper": Counter(REPLICATED=1, INVALID=1)}
    rates = Rates("a.holds", "gemma2-9b", 300, True, 2, outcomes=counts, sufficient=[300, None])
    assert Rates.read(json.loads(json.dumps(rates.plain()))) == rates


def test_an_entry_of_the_json_counts_every_outcome() -> None:
    counts = Counter({"REPLICATED": 4, "NOT REPLICATED": 3, "UNIDENTIFIED": 2, "INVALID": 1})
    (entry,) = Rates("a.holds", "all", 300, True, 10, outcomes={"rival": counts}).entries()
    assert entry == {
        "id": "a.holds", "model": "all", "world": "rival", "asserted": True, "runs": 10, "replicated": 4,
        "not_replicated": 3, "inconclusive": 0, "unidentified": 2, "invalid": 1,
    }  # fmt: skip


TABLE = Path(__file__).parents[2] / "docs" / "power.csv"
CLAIMS = by_id()


def simulated() -> Iterator[tuple[str, str, tuple[float, float]]]:
    """Row, model and the interval of the share of REPLICATED in the paper's world, of every row that the table has
    rates for and whose sentence the paper says of the model."""
    with TABLE.open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            if line["asserted"] and not line["no rates"]:
                low, _, high = line["R, 95 % interval"].partition(" to ")
                yield line["row"], line["model"], (int(low) / 100, int(high) / 100)


INTERVALS = {(row, model): interval for row, model, interval in simulated()}


def test_the_table_is_read() -> None:
    """Every row that is in the table with rates, of sentences that the paper says of the model; and both kinds."""
    assert len(INTERVALS) > 100
    assert all(model in CLAIMS[row].models for row, model in INTERVALS if model != ALL_MODELS)
    assert min(high for _, high in INTERVALS.values()) < ENOUGH < max(high for _, high in INTERVALS.values())


def test_a_row_that_seldom_replicates_says_why() -> None:
    """Where it surely does so in less than four fifths of the runs."""
    seldom = [key for key, (_, high) in INTERVALS.items() if high < ENOUGH]
    assert [key for key in seldom if not label(key[0], key[0], key[1])] == []


def test_no_row_is_excused_that_does_replicate() -> None:
    assert [key for key in undecided() if INTERVALS.get(key, (1.0, 1.0))[0] >= ENOUGH] == []


def test_a_label_says_both_and_nothing_of_others() -> None:
    id, model = "binding.object_keys_read_out", "gemma2-9b"
    assert str(label(id, id, model)).startswith(f"{SHORT}: object keys lead")
    assert label(f"{id}.controlled", id, model) is None
    against = next(entry for entry in contradictions() if entry.claim == "circuit.three_to_ten_percent")
    assert label(f"{against.claim}.controlled", against.claim, "gemma3-12b") == f"{AGAINST}: {against.why}"
    assert label(id, id, None) is None


def test_two_reasons_for_one_row_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    row = '[[rows]]\nclaims = ["a.b"]\nmodels = ["gemma2-9b"]\nwhy = "so"\n'
    (tmp_path / "undecided.toml").write_text(row * 2)
    monkeypatch.setattr(module, "files", lambda _: tmp_path)
    with pytest.raises(ValueError, match=r"two reasons for a\.b on gemma2-9b"):
        undecided.__wrapped__()


def test_the_label_reaches_the_table_and_the_json() -> None:
    """The page has it from the JSON (`tests/report/test_page.py`)."""
    claim, model = CLAIMS["circuit.margins.circuit"], "llama3.1-8b"
    note = label(claim.id, claim.sentence, model)
    verdict = Verdict(claim.kind, "INCONCLUSIVE", "too few")
    fields = {"model": model, "expected": "REPLICATED", "paper": None, "design": "published", "circuit": "published"}
    labelled, plain = (judgement(claim, verdict, **fields, label=text) for text in (note, None))
    assert labelled.plain()["label"] == note
    assert f"  {claim.id}: {note}" in list(table(summary_of([labelled]).models))
    assert not any(SHORT in line for line in table(summary_of([plain]).models))
