"""The error rates that `docs/decisions/verdict-rules.md` states are those of the rules."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import pytest
from scipy import stats

from rebinding.verdicts.effects import effect_outcomes
from rebinding.verdicts.estimates import estimate
from tests.tree.syntax_trees import ROOT
from tests.verdicts.characteristics import LEVEL
from tests.verdicts.error_rates import (
    BLOCK,
    EXPERIMENTS,
    SETS,
    SIZES,
    TABLES,
    Table,
    compare_lengths,
    simulate_controlled,
    simulate_jackknife,
    worst_error,
)
from tests.verdicts.simulation import FALSE_ALARM, rate_is_at_most

PAGE = ROOT / "docs" / "decisions" / "verdict-rules.md"
FEW_EXPERIMENTS = BLOCK
PRINTED_DIGIT = 0.0005
"""Half of the last printed digit."""
TABLE = pytest.mark.parametrize("table", TABLES, ids=lambda table: table.head)
KEEPS_LEVEL = {
    "one value in ten is huge": 48,
    "shared words, about these words": SIZES[0],
    "normal": SETS[0],
    "published, about these directions": 0,
    "published, batches left out, about all directions": 0,
    "controlled, about all directions": 0,
}
"""Rows of the page that are said to keep 5 %, and from which column on."""


def read_table(table: Table) -> Mapping[tuple[str, str], float]:
    """The shares on the page, by row and column."""
    lines = PAGE.read_text("utf-8").splitlines()
    start = lines.index(f"| {table.head} | {' | '.join(table.columns)} |") + 2
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start : start + len(table.rows)]]
    return {
        (name, column): float(cell) / 100
        for name, *cells in rows
        for column, cell in zip(table.columns, cells, strict=True)
    }


@cache
def simulated() -> Mapping[tuple[str, str], float]:
    """Every cell of all tables, by fewer experiments than on the page, and others."""
    return {
        (name, column): worst_error(cell, FEW_EXPERIMENTS)
        for table in TABLES
        for name, cells in table.rows.items()
        for column, cell in zip(table.columns, cells, strict=True)
    }


@TABLE
def test_the_page_states_what_the_rules_do(table: Table) -> None:
    printed = read_table(table)
    assert {name for name, _ in printed} == set(table.rows)
    for cell, share in printed.items():
        variance = share * (1 - share) * (1 / EXPERIMENTS + 1 / FEW_EXPERIMENTS)
        luck = stats.norm.isf(FALSE_ALARM) * np.sqrt(variance) + PRINTED_DIGIT
        assert abs(simulated()[cell] - share) <= luck, cell


def keeps_level(row: str, column: str) -> bool:
    """Whether the page says that a cell keeps 5 %."""
    number = [int(word) for word in column.split() if word.isdigit()]
    return row in KEEPS_LEVEL and (not KEEPS_LEVEL[row] or number[0] >= KEEPS_LEVEL[row])


@TABLE
def test_five_per_cent_is_kept_where_the_page_says_so(table: Table) -> None:
    kept = {cell: share for cell, share in read_table(table).items() if keeps_level(*cell)}
    assert kept
    for cell, share in kept.items():
        assert share <= rate_is_at_most(LEVEL, EXPERIMENTS), cell
        assert simulated()[cell] <= rate_is_at_most(LEVEL, FEW_EXPERIMENTS), cell


def exact_error(n: int) -> float:
    """How often an effect at its boundary is decided, by summing the binomial."""
    outcomes = effect_outcomes(estimate(np.tri(n + 1, n, -1), unit="prompts"), 0.0, above=0.1)  # row k: k huge values
    probabilities = stats.binom.pmf(np.arange(n + 1), n, 0.1)
    return max(float(probabilities[outcomes == outcome].sum()) for outcome in ("REPLICATED", "NOT REPLICATED"))


@pytest.mark.parametrize("n", SIZES)
def test_one_huge_value_in_ten_exactly(n: int) -> None:
    """An effect at its boundary errs as the page says of all rules."""
    printed = read_table(TABLES[0])["one value in ten is huge", f"N = {n}"]
    luck = stats.norm.isf(FALSE_ALARM) * np.sqrt(printed * (1 - printed) / EXPERIMENTS)
    assert abs(exact_error(n) - printed) <= luck + PRINTED_DIGIT


def test_one_huge_value_in_ten_keeps_the_level_from_29_on() -> None:
    """The counts of huge values are whole numbers, so single N exceed 5 % by little."""
    assert max(exact_error(n) for n in range(29, 141)) <= LEVEL
    assert max(exact_error(n) for n in range(141, 200)) <= 0.056 + PRINTED_DIGIT


def test_the_price_of_leaving_out_batches_is_on_the_page() -> None:
    text = " ".join(PAGE.read_text("utf-8").split())
    assert f"intervals {compare_lengths(simulate_jackknife)}" in text
    assert f"intervals {compare_lengths(simulate_controlled)}" in text


@pytest.mark.slow
@TABLE
def test_the_page_has_the_printed_table(table: Table) -> None:
    assert "\n".join(table.lines()) in PAGE.read_text("utf-8")
