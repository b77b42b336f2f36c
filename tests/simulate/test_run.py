"""Simulated runs of pytest: options, verdicts counted in one process and in several, and the stopping rule."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixtures.dry_runs import Simulation, check_simulation, simulation_of
from rebinding.simulate.rates import interval, is_settled, looks, n_for_power, sufficient_n
from rebinding.study.options import Options
from rebinding.verdicts import Verdict
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


def options_of(simulate: tuple[str, ...] = ("paper",), **values: Any) -> Options:
    """The options of a simulated run; `every_token=True` stands for `--every-token`."""
    return Options(simulate=simulate, **values)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"runs": 0}, "--runs 0: give 1 or more"),
        ({"seed": -1}, "--seed -1: give 0 or more"),
        ({"spread": (2.0, 0.0)}, "--spread 0: give a finite factor above 0"),
        ({"spread": (float("inf"),)}, "--spread inf: give a finite factor above 0"),
        ({"circuit": "discovered"}, "--circuit discovered and --simulate: the paper's own circuit is simulated"),
        ({"device": "cuda"}, "--device cuda and --simulate: no model runs"),
        ({"dtype": "float32"}, "--dtype float32 and --simulate"),
        ({"remote": True}, "--remote and --simulate"),
        ({"engine": "ray"}, "--engine ray and --simulate: nothing is computed by workers"),
        ({"workers": 2}, "--workers 2 and --simulate"),
        ({"store": "there"}, "--store there and --simulate: simulated evidence is not saved"),
        ({"every_token": True}, "--every-token and --simulate"),
        ({"strict_verdicts": True}, "--strict-verdicts and --simulate"),
        ({"planted": "all"}, "--planted all and --simulate: only models of the paper"),
        ({"model": ("gemma2-9b", "planted:pointer")}, "--model 'planted:pointer' and --simulate"),
        ({"model": ("gemma2-9b=folder",)}, "gemma2-9b, gemma3-12b, llama3.2-3b, llama3.1-8b"),
        ({"simulate": (), "runs": 3}, "--runs belongs to simulated runs"),
        ({"simulate": ("rival",), "spread": (2.0,)}, "--spread is about the world in which the paper is right"),
        ({"simulate": (), "seed": 0}, "--seed belongs to simulated runs"),
        ({"simulate": (), "spread": (2.0,)}, "--spread belongs to simulated runs"),
    ],
    ids=str,
)
def test_contradicting_options_of_a_simulation_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(pytest.UsageError) as refused:
        check_simulation(options_of(**options))
    assert message in str(refused.value)


@pytest.mark.parametrize("options", [{}, {"model": ("gemma2-9b",), "runs": 3, "seed": 4}, {"simulate": ()}], ids=str)
def test_other_options_of_a_simulation_are_accepted(options: dict[str, Any]) -> None:
    check_simulation(options_of(**options))


def test_worlds_have_an_order_and_samples_have_seeds() -> None:
    simulation = simulation_of(options_of(simulate=("rival", "paper", "rival"), runs=3, seed=5))
    assert simulation == Simulation(("paper", "rival"), 3, 5)
    samples = [(run.world.name, run.seed) for run in simulation.samples("rival", "gemma2-9b")]
    assert samples == [("rival", seed) for seed in (5, 6, 7)]


def test_a_factor_multiplies_every_declared_spread() -> None:
    """What follows from printed numbers (how far margins spread) stays as it is."""
    simulation = simulation_of(options_of(spread=(2.0,), runs=60))
    default = next(simulation.samples("paper", "gemma2-9b")).world
    (wide, *narrower) = [run.world for run in simulation.samples_at_spread(2.0, "gemma2-9b")]
    assert wide.spreads == {name: 2 * value for name, value in default.spreads.items()}
    assert wide.means == default.means
    assert len(narrower) == 49


@pytest.mark.parametrize(
    ("runs", "expected"), [(1, (1,)), (25, (25,)), (26, (25, 26)), (50, (25, 50)), (200, (25, 50, 100, 200))]
)
def test_looks_double_and_end_with_the_last_sample(runs: int, expected: tuple[int, ...]) -> None:
    assert looks(runs) == expected


def test_the_interval_of_a_single_look_is_that_of_clopper_and_pearson() -> None:
    """Its ends are known in closed form where all or none of the runs come out right: 0.025^(1/n)."""
    low, high = interval(20, 20)
    assert (low, high) == (pytest.approx(0.025 ** (1 / 20)), 1.0)
    assert interval(0, 20)[1] == pytest.approx(1 - 0.025 ** (1 / 20))
    assert interval(0, 0) == (0.0, 1.0)


def test_more_looks_make_wider_intervals() -> None:
    single, four = interval(45, 50), interval(45, 50, n_looks=4)
    assert four[0] < single[0] < 0.9 < single[1] < four[1]


@pytest.mark.parametrize(
    ("count", "runs", "target", "settled"),
    [
        (25, 25, 0.8, True),
        (24, 25, 0.8, False),
        (25, 25, 0.9, False),
        (50, 50, 0.9, True),
        (0, 25, 0.8, True),
        (20, 25, 0.8, False),
        (26, 26, 0.8, False),  # no look after so many
        (160, 200, 0.8, True),  # the last one
    ],
)
def test_a_row_ends_at_a_look_at_which_its_share_is_sure(count: int, runs: int, target: float, settled: bool) -> None:
    assert is_settled(count, runs, planned=200, target=target) == settled


@pytest.mark.parametrize("share", [0.6, 0.8, 0.9])
def test_the_true_share_is_within_the_interval_of_the_look_that_ended_a_row(share: float) -> None:
    """Of 2000 rows with a known share at most 5 % may miss it: 100, and 4 standard errors more by luck."""
    dice, n_missed = np.random.default_rng(5), 0
    for _ in range(2000):
        right = np.cumsum(dice.random(200) < share)
        ends = next(n for n in looks(200) if is_settled(int(right[n - 1]), n, 200, 0.8))
        low, high = interval(int(right[ends - 1]), ends, len(looks(200)))
        n_missed += not low <= share <= high
    assert n_missed <= 100 + 4 * np.sqrt(2000 * 0.05 * 0.95)


def test_what_suffices_in_a_run() -> None:
    assert sufficient_n(Verdict("effect", "REPLICATED", ""), 300) == 300
    assert sufficient_n(Verdict("effect", "INCONCLUSIVE", "", needed_n=700), 300) == 700
    assert sufficient_n(Verdict("effect", "INCONCLUSIVE", ""), 300) is None
    assert sufficient_n(Verdict("value", "INCONCLUSIVE", "", needed_n=700, unidentified=True), 300) is None
    assert sufficient_n(Verdict("effect", "NOT REPLICATED", ""), 300) is None


@pytest.mark.parametrize(
    ("sufficient", "outcomes", "expected"),
    [
        ([300] * 4 + [900], {"REPLICATED": 4, "INCONCLUSIVE": 1}, 300),
        ([300] * 2 + [500, 700, 900], {"REPLICATED": 2, "INCONCLUSIVE": 3}, 700),
        ([300] * 3 + [None, None], {"REPLICATED": 3, "INCONCLUSIVE": 2}, None),
        ([500] * 9 + [None], {"INCONCLUSIVE": 9, "NOT REPLICATED": 1}, None),
        ([], {}, None),
    ],
)
def test_four_of_five_runs_must_have_enough(
    sufficient: list[int | None], outcomes: dict[str, int], expected: int | None
) -> None:
    assert n_for_power(sufficient, Counter(outcomes)) == expected
