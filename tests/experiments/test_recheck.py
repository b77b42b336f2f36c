"""Evidence that strangers can check: rows that were changed are found at the stated rate, true rows are not accused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom

from rebinding.cli.commands import main
from rebinding.evidence import Evidence
from rebinding.experiments.paths.request import STAGE_BY_NAME, request_paths
from rebinding.experiments.prompts import draw_noise_pairs
from rebinding.experiments.recheck import RecheckError, differences, draw, is_comparable, most_false, rebuild, recheck
from rebinding.experiments.unedited import request_ability
from rebinding.experiments.workbench import Workbench
from rebinding.models import load
from rebinding.paper.procedure import builtin_procedure
from tests.claims.run_claims import assert_ok, run

RUNS = 400


@pytest.fixture(scope="module")
def bench() -> Workbench:
    return Workbench(load("planted:pointer"))


@pytest.fixture(scope="module")
def evidence(bench: Workbench) -> Mapping[str, Evidence]:
    """Evidence in three blocks, in one piece, and of rounding alone."""
    prompts = bench.prompts
    conventions = builtin_procedure("controlled").circuit
    paths = request_paths(draw_noise_pairs(prompts, conventions, 6), STAGE_BY_NAME["A"], (), conventions)
    requests = (
        request_ability(prompts, prompts.design("published"), 6),
        replace(paths, settings=replace(paths.settings, block=2)),
    )
    rounding = Evidence("floors", pd.DataFrame({"prompt": [300], "logit": [1e-6]}), {})
    return {"floors": rounding, **{request.label: bench.get(request) for request in requests}}


def change(evidence: Mapping[str, Evidence], kind: str, row: int, column: str, by: float) -> dict[str, Evidence]:
    """The same evidence with one changed number."""
    name = next(name for name, piece in evidence.items() if piece.experiment == kind)
    rows = evidence[name].rows.copy()
    rows.loc[row, column] += by
    return {**evidence, name: replace(evidence[name], rows=rows)}


def test_true_evidence_is_not_accused(evidence: Mapping[str, Evidence], bench: Workbench) -> None:
    sample = draw(evidence, 40, seed=0)
    assert {row.name for row in sample} == {name for name, piece in evidence.items() if is_comparable(piece)}
    compared = list(recheck(evidence, sample, "float32", lambda request: bench))
    assert [result.drawn for result in compared] == sample
    assert not any(result.is_false or result.part_false for result in compared)
    parts = {result.part_rows for result in compared if result.drawn.name.startswith("paths")}
    total = next(len(piece.rows) for piece in evidence.values() if piece.experiment == "paths")
    assert parts == {total // 6}, "the rows of one prompt are computed again, not all of them"


@pytest.mark.parametrize(("column", "by"), [("lead_patch", 0.1), ("relative_change", -0.3)])
def test_a_changed_number_is_found(column: str, by: float, evidence: Mapping[str, Evidence], bench: Workbench) -> None:
    """A tenth of a logit, where the largest logits of this model are about fifty."""
    changed = change(evidence, "paths", 17, column, by)
    everything = draw(changed, 10**6, seed=0)
    results = list(recheck(changed, everything, "float32", lambda request: bench))
    false = [result.drawn for result in results if result.is_false]
    assert [(row.name.split(":")[0], row.row) for row in false] == [("paths", 17)]
    assert {result.part_false for result in results} == {0, 1}, "rows of its prompt say that one of them differs"


@pytest.mark.parametrize(("margin", "is_allowed"), [(1e-7, True), (0.5, False)])
def test_an_answer_may_turn_where_its_own_margin_is_rounding(margin: float, is_allowed: bool) -> None:
    """The margin over the counterfactual's answer decides that hit, and the other margin, here of 3, does not."""
    row = pd.DataFrame({"hit_with_counterfactual": [True], "margin": [3.0], "counterfactual_margin": [margin]})
    other = row.assign(hit_with_counterfactual=False)
    assert bool(differences(row, other, "float32")[0] <= 1) == is_allowed


def test_a_missing_or_foreign_row_is_found(evidence: Mapping[str, Evidence], bench: Workbench) -> None:
    name = next(name for name, piece in evidence.items() if piece.experiment == "ability")
    table = evidence[name].rows
    for rows in (table.iloc[:-1], table.assign(prompt=table["prompt"].to_numpy()[::-1])):
        changed = {name: replace(evidence[name], rows=rows)}
        results = list(recheck(changed, draw(changed, 3, 0), "float32", lambda request: bench))
        assert all(result.is_false for result in results)


def test_a_changed_request_is_refused(evidence: Mapping[str, Evidence]) -> None:
    name, piece = next((name, piece) for name, piece in evidence.items() if piece.experiment == "paths")
    request: dict[str, Any] = {**piece.settings["request"]}
    other_ids = request | {"prompts": {**request["prompts"], "ids": [1, 2, 3]}}
    fewer = {field: value for field, value in request.items() if field != "senders"}
    for changed, message in (
        (other_ids, "another key than the file says"),
        (fewer, "has other fields than this version writes"),
        ({}, "is not as this version writes it"),
    ):
        with pytest.raises(RecheckError, match=message):
            rebuild(replace(piece, settings={**piece.settings, "request": changed}), name)
    with pytest.raises(RecheckError, match="no experiment 'oracle'"):
        rebuild(replace(piece, experiment="oracle"), name)


@pytest.mark.parametrize(("n", "share"), [(20, 0.02), (60, 0.1)])
def test_tampering_is_noticed_at_the_stated_rate(n: int, share: float, evidence: Mapping[str, Evidence]) -> None:
    """Of R rows F are false: a sample of n misses them all with the hypergeometric chance, for large R (1 - F/R)^n."""
    rows = [(name, row) for name, piece in evidence.items() if is_comparable(piece) for row in range(len(piece.rows))]
    false = {rows[place] for place in np.random.default_rng(7).choice(len(rows), round(share * len(rows)), False)}
    draws = [draw(evidence, n, seed) for seed in range(RUNS)]
    assert all(len(set(sample)) == n for sample in draws)
    assert draw(evidence, n, 3) == draws[3] != draws[4]
    noticed = sum(any((row.name, row.row) in false for row in sample) for sample in draws)
    low, high = binom.interval(1 - 1e-4, RUNS, 1 - (1 - share) ** n)
    assert low - 2 <= noticed <= high + 2, "of the finite population a little more than of the infinite one"


def test_the_bound_is_that_of_the_rule_of_three() -> None:
    """No false row in n: (1 - s)^n = 0.05, so s is about 3 / n. The bound of some false rows is larger."""
    for n in (20, 300):
        assert most_false(0, n) == pytest.approx(1 - 0.05 ** (1 / n)) == pytest.approx(3 / n, rel=0.1)
    assert binom.cdf(1, 20, most_false(1, 20)) == pytest.approx(0.05, abs=1e-4)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a real report: true evidence passes, a changed file is noticed when its row is drawn, other weights are
    refused."""
    folder = tmp_path / "report"
    options = ("--model", "planted:pointer", "--samples", "12", "--no-store", "--report", str(folder))
    assert_ok(run("-k", "b_attends_to_question_box", *options))
    assert main(["report", str(folder), "--recheck", "15", "--seed", "1"]) == 0
    output = capsys.readouterr().out
    assert "planted:pointer@llama: 15 of" in output
    assert "0 differ" in output
    assert f"at most {1 - 0.05 ** (1 / 15):.1%} of the rows are false" in output
    path = next(path for path in (folder / "evidence").glob("*attention*"))
    piece = Evidence.load(path)
    piece.rows["attention"] += 0.01
    piece.save(path)
    assert main(["report", str(folder), "--recheck", "15", "--seed", "1"]) == 1
    assert "differs: row" in capsys.readouterr().out
    assert main(["report", str(folder), "--recheck", "15", "--model", "planted:recency"]) == 2
    assert main(["report", str(folder), "--recheck", "0"]) == 2
    assert main(["report", str(folder), "--seed", "1"]) == 2
