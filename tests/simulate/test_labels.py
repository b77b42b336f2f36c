"""The notes on rows from simulated evidence: in the table, on the page and in `claims.json`."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest

from claims.catalogue import by_id
from fixtures.verdict_table import table
from rebinding.paper import claim as module
from rebinding.paper.claim import AGAINST, SHORT, label, undecided
from rebinding.paper.numbers import contradictions
from rebinding.simulate.rates import ALL_MODELS, ENOUGH
from rebinding.verdicts import Verdict
from rebinding.verdicts.judgement import judgement
from tests.report.folders import summary_of

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
