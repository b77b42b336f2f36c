"""What made-up evidence says of a row stands on the row: in the table, on the page and in `claims.json`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.telling import table
from rebinding.paper import undecided as module
from rebinding.paper.numbers import contradictions
from rebinding.paper.undecided import AGAINST, SHORT, label, undecided
from rebinding.power.rates import ENOUGH
from rebinding.power.rows import rows
from rebinding.verdicts import Verdict
from rebinding.verdicts.judgement import judgement

PAGE = (Path(__file__).parents[2] / "docs" / "power.md").read_text("utf-8")
CLAIMS = {row.claim.id: row.claim for row in rows()}
LINE = re.compile(
    r"^\| (?P<row>[\w.]+) \| (?P<n>\d+) \| (?P<runs>\d+) \| (?P<asserted>yes)? ?\| (?P<paper>[^|]*) \|", re.MULTILINE
)


def simulated() -> Iterator[tuple[str, str, float]]:
    """Row, model and share of REPLICATED in the paper's world, of every asserted row that the page has rates for."""
    for part in PAGE.split("\n## ")[1:]:
        for line in LINE.finditer(part):
            if line["asserted"]:
                share = re.search(r"\bR (\d+)", line["paper"])
                yield line["row"], part.partition("\n")[0], int(share[1]) / 100 if share else 0.0


SHARES = {(row, model): share for row, model, share in simulated()}


def test_the_page_is_read() -> None:
    """Every asserted row that is on the page with rates, and both kinds of them."""
    assert len(SHARES) > 100
    assert all(model in CLAIMS[row].asserted for row, model in SHARES)
    assert min(SHARES.values()) < ENOUGH <= max(SHARES.values())


def test_a_row_that_seldom_replicates_says_why() -> None:
    silent = [key for key, share in SHARES.items() if share < ENOUGH and not label(key[0], key[0], key[1])]
    assert silent == []


def test_no_row_is_excused_that_does_replicate() -> None:
    assert [key for key in undecided() if SHARES.get(key, 1.0) >= ENOUGH] == []


def test_a_label_says_both_and_nothing_of_others() -> None:
    id, model = "binding.object_keys_read_out", "gemma2-9b"
    assert str(label(id, id, model)).startswith(f"{SHORT}: object keys lead")
    assert label(f"{id}.controlled", id, model) is None
    against = next(one for one in contradictions() if one.model == "gemma3-12b")
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
    claim, model = CLAIMS["circuit.near_full"], "llama3.1-8b"
    told = label(claim.id, claim.sentence, model)
    verdict = Verdict(claim.kind, "NOT REPLICATED", "too low")
    about = {"model": model, "expected": "REPLICATED", "paper": None, "design": "published", "circuit": "published"}
    found, plain = (judgement(claim, verdict, **about, label=one) for one in (told, None))
    assert found.plain()["label"] == told
    assert f"  {claim.id}: {told}" in list(table([found]))
    assert not any(SHORT in line for line in table([plain]))
