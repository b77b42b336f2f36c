"""Simulated runs of pytest: verdicts of the row's own test and gates are counted, in one process and in several."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.claims.run_claims import assert_ok
from tests.claims.run_claims import run as run_claims

pytest_plugins = ["pytester"]
Counts = dict[str, int]
OUTCOMES = ("replicated", "not_replicated", "inconclusive", "unidentified", "invalid")

SUITE = """
from itertools import count

import pytest

from claims.catalogue import row as declare
from rebinding.experiments.circuit.request import request_knockout
from rebinding.verdicts import Verdict

def row(name, **options):
    facts = {"source": "section 5", "kind": "effect", "metrics": ("dR",), "statistic": "mean", "where": "group B"}
    return declare(f"toy.{name}", "A sentence.", **facts, **options)

@row("holds")
@row("gate", needs=("E",))
@row("long", long=True)
def test_holds(claim, study):
    return Verdict("effect", "REPLICATED", "as it is")

CALLS = count()

@row("often")
def test_holds_in_four_of_five(claim, study):
    return Verdict("effect", "INCONCLUSIVE" if next(CALLS) % 5 == 0 else "REPLICATED", "by turns", needed_n=700)

@row("headline", headline=5)
def test_holds_where_little_spreads(claim, study):
    run = study._model.settings.engine.run
    return Verdict("effect", "REPLICATED" if run.world.spreads["effect"] < 0.6 else "INCONCLUSIVE", "as it spreads")

@row("open")
def test_no_convention_agrees(claim, study):
    return Verdict("effect", "INCONCLUSIVE", "no candidate agrees", unidentified=True)

@row("broken")
def test_is_broken(claim, study):
    evidence = study.ablate_circuit(claim)
    return Verdict("effect", "NOT REPLICATED", f"{len(evidence.rows)} rows")

@row("knockout")
def test_asks_for_a_knockout(claim, study):
    return study.ask(claim, request_knockout)

@row("bug")
def test_has_a_bug(claim, study):
    raise RuntimeError("a bug of this row")
"""


@pytest.fixture
def run(pytester: pytest.Pytester) -> Callable[..., pytest.RunResult]:
    """Simulate the rows above on a model whose group E is empty."""
    pytester.makepyfile(test_toy=SUITE)
    pytester.makeini("[pytest]\nmarkers = headline: what the abstract rests on")

    def simulate(*options: str) -> pytest.RunResult:
        fixed_options = ("--model", "gemma2-9b", "--samples", "100", "-p", "no:cacheprovider", "-p", "fixtures.plugin")
        return pytester.runpytest_inprocess(*fixed_options, *options)

    return simulate


def read_counts(folder: Path) -> dict[str, dict[str, Counts]]:
    """For each row of a report, by its id, what came out in each world."""
    rows = json.loads((folder / "power.json").read_text("utf-8"))["rows"]
    by_row: dict[str, dict[str, Counts]] = {}
    for row in rows:
        counts = {name: row[name] for name in OUTCOMES if row[name]}
        by_row.setdefault(f"{row['id']} on {row['model']}", {})[row["world"]] = counts
        assert row["runs"] == sum(counts.values())
    return by_row


def test_the_rows_own_test_is_counted(run: Callable[..., pytest.RunResult], pytester: pytest.Pytester) -> None:
    """A rule that always says no comes out so in a world in which the paper is right, and gates come first."""
    result = run("--simulate", "paper", "--simulate", "rival", "--runs", "2", "--seed", "3", "--report", "out", "-rs")
    outcomes = result.parseoutcomes()
    assert outcomes == {"simulated": 7, "skipped": 1, "failed": 1}
    worlds = read_counts(pytester.path / "out")
    for name, outcome in {"holds": "replicated", "long": "replicated", "broken": "not_replicated", "gate": "invalid",
                          "open": "unidentified"}.items():  # fmt: skip
        assert worlds[f"toy.{name} on gemma2-9b"] == {"paper": {outcome: 2}, "rival": {outcome: 2}}
    assert "toy.bug on gemma2-9b" not in worlds


def test_a_row_ends_when_its_share_has_left_its_target(
    run: Callable[..., pytest.RunResult], pytester: pytest.Pytester
) -> None:
    """25 of 25 are surely more than 80 %, and 0 of 25 surely less; 48 of 60 are neither. A row that discovers circuits
    ends at 50, whatever came out."""
    run("--simulate", "paper", "--simulate", "rival", "--runs", "60", "--report", "out", "-k", "holds")
    worlds = read_counts(pytester.path / "out")
    assert worlds["toy.holds on gemma2-9b"] == {"paper": {"replicated": 25}, "rival": {"replicated": 25}}
    assert worlds["toy.often on gemma2-9b"]["paper"] == {"replicated": 48, "inconclusive": 12}
    assert sum(worlds["toy.often on gemma2-9b"]["rival"].values()) == 25
    table = (pytester.path / "out" / "power.csv").read_text("utf-8").splitlines()
    (line,) = (line for line in table if "toy.often" in line)
    assert line.startswith('gemma2-9b,toy.often,100,60,yes,"R 80, ? 20",65 to 91,up to 100,25,')


def test_headline_rows_are_judged_at_other_spreads(
    run: Callable[..., pytest.RunResult], pytester: pytest.Pytester
) -> None:
    run("--simulate", "paper", "--runs", "2", "--spread", "0.5", "--spread", "2", "--report", "out", "-k", "holds")
    page = (pytester.path / "out" / "power.md").read_text("utf-8")
    part = page.partition("## Headline rows at other spreads")[2].partition("\n## ")[0]
    assert "| row | model | x 0.5 | x 1 | x 2 |" in part
    assert "| toy.headline | gemma2-9b | R 100 | R 100 | ? 100 |" in part
    assert "toy.holds" not in part
    assert "--spread 0.5 --spread 2 " in page.partition("\n## ")[0]


def test_rows_without_a_simulation_are_skipped_by_name(
    run: Callable[..., pytest.RunResult], pytester: pytest.Pytester
) -> None:
    result = run("--simulate", "paper", "--runs", "1", "--report", "out", "-rs")
    result.stdout.fnmatch_lines(["*RuntimeError: a bug of this row", "SKIPPED*not simulated: knockout (ours; *"])
    result.stdout.fnmatch_lines(["*not simulated: knockout (ours; *): toy.knockout"])
    (missing,) = json.loads((pytester.path / "out" / "power.json").read_text("utf-8"))["not_simulated"]
    assert missing["id"] == "toy.knockout"
    assert missing["reason"].startswith("knockout (ours; ")
    page = (pytester.path / "out" / "power.md").read_text("utf-8")
    command = "pytest claims --simulate paper --runs 1 --samples 100 --model gemma2-9b --report DIR"
    assert f"Written by `{command}`" in page


def test_options_that_would_be_ignored_stop_the_run(run: Callable[..., pytest.RunResult]) -> None:
    result = run("--simulate", "paper", "--engine", "ray")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--engine ray and --simulate: nothing is computed by workers*"])


@pytest.mark.slow
def test_workers_count_what_one_process_counts(tmp_path: Path) -> None:
    """Real rows of two files, whose verdicts depend on the sample; no GPU is needed for the paper's models."""
    rows = "a_lowers_content or binding.table.k_both"
    options = ("--simulate", "paper", "--runs", "3", "--samples", "60", "-k", f"gemma2 and ({rows})")
    for name, workers in (("one", "0"), ("two", "2")):
        assert_ok(run_claims(*options, "-n", workers, "--report", str(tmp_path / name)))
    first, second = (read_counts(tmp_path / name) for name in ("one", "two"))
    assert first == second
    assert len(first) == 5
    assert len({json.dumps(row, sort_keys=True) for row in first.values()}) > 1
    page = (tmp_path / "one" / "power.md").read_text("utf-8")
    assert page == (tmp_path / "two" / "power.md").read_text("utf-8")
