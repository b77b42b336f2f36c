"""The page in the docs says what the verb computes, and names the rows that nobody can decide at their N."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rebinding.paper.numbers import ALIASES
from rebinding.power.rates import Rates, rates
from rebinding.power.rows import chosen, rows
from rebinding.power.table import absent, markdown, undecided

PAGE = (Path(__file__).parents[2] / "docs" / "power.md").read_text("utf-8")
LISTED = set(re.findall(r"^\* `([\w.]+)` on ([\w.-]+): ", PAGE, flags=re.MULTILINE))
SURE = (
    ("gemma2-9b", "binding.qk_cancels"),
    ("gemma3-12b", "binding.q_strongest"),
    ("gemma2-9b", "roles.b_is_the_pointer"),
    ("llama3.1-8b", "binding.k_redirects"),
)
"""Rows that come out the same way in every sample, two of them on the list and two not."""


@pytest.mark.parametrize(("model", "id"), SURE)
def test_the_list_is_what_is_computed(model: str, id: str) -> None:
    found = [one for one in rates(model, chosen(id), 2, 0) if one.row == id]
    assert bool(undecided(found)) == ((id, model) in LISTED)


def test_every_row_stands_on_the_page_once_for_every_model() -> None:
    for model in ALIASES:
        part = PAGE.partition(f"## {model}\n")[2].partition("\n## ")[0]
        table = re.findall(r"^\| ([a-z][\w.]+\.[\w.]+) \|", part, flags=re.MULTILINE)
        without = re.findall(r"`([a-z][\w.]+)`", part.partition("Not simulated, or not judged here:")[2])
        assert sorted([*table, *without]) == sorted(row.claim.id for row in rows())


def test_what_is_listed_is_asserted() -> None:
    asserted = {(row.claim.id, model) for row in rows() for model in row.claim.asserted}
    assert LISTED
    assert asserted >= LISTED


def test_a_table_leaves_out_nothing() -> None:
    """A row with rates, one that does not apply, one that could not be made up, and one that is never replicated."""
    told = [Rates(name, "gemma2-9b", 300, True) for name in ("a.holds", "a.fails", "a.elsewhere", "a.unknown")]
    for one, outcome in zip(told, ("REPLICATED", "NOT REPLICATED", "NOT APPLICABLE"), strict=False):
        one.outcomes["paper"][outcome] += 2
    told[3].not_simulated = "nobody knows how"
    page = "\n".join(markdown(told))
    assert [one.row for one in undecided(told)] == ["a.fails"]
    assert [name for name, _ in absent(told)] == ["a.elsewhere", "a.unknown"]
    assert all(page.count(one.row) >= 1 for one in told)
    assert "| a.holds | 300 | 2 | yes | R 100 |" in page
