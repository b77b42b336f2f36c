"""Claims on several processes: whole models per process, one report, and no early import of large libraries. Only the
process that the user started prints, whatever ends the workers of pytest-xdist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from claims.catalogue import claims
from fixtures.collecting import pytest_xdist_make_scheduler, unit_of
from fixtures.options import SETTINGS
from fixtures.report import merge_models
from fixtures.transport import PROPERTY, collect_judgements
from tests.claims import interrupted_worker
from tests.claims.run_claims import ROOT, assert_ok, run
from tests.report.folders import make_row

HEAVY = ("transformers.modeling_utils", "nnsight", "matplotlib", "huggingface_hub", "rebinding.report.page",
         "pydantic")  # fmt: skip


@pytest.mark.slow
def test_each_process_takes_whole_models() -> None:
    models = ("--model", "planted:pointer", "--model", "planted:global")
    result = run(*models, "-n", "2", "-vv", "--no-store", "--samples", "12", "-k", "D_q_C or group_e")
    assert_ok(result)
    workers = defaultdict(set)
    for worker, model in re.findall(r"\[(gw\d)\].*?\[(planted:\w+@llama)-", result.stdout):
        workers[model].add(worker)
    assert {model: len(names) for model, names in workers.items()} == {
        "planted:pointer@llama": 1,
        "planted:global@llama": 1,
    }
    assert set.union(*workers.values()) == {"gw0", "gw1"}


@dataclass(eq=False)
class Process:
    """A worker as the scheduler of pytest-xdist sees it, with the tests that it was sent."""

    gateway: SimpleNamespace
    shutting_down: bool = False
    tests: list[int] = field(default_factory=list)
    n_done: int = 0

    def send_runtest_some(self, indices: list[int]) -> None:
        self.tests += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def run_on_two_workers(models: list[str], tests: list[str]) -> tuple[Process, Process]:
    """Run all tests on two workers that need the same time for every test."""
    config: Any = SimpleNamespace(
        stash={SETTINGS: SimpleNamespace(models=[SimpleNamespace(name=name, by_default=False) for name in models])},
        args=["claims"],
        rootpath=ROOT,
        invocation_params=SimpleNamespace(dir=ROOT),
        option=SimpleNamespace(loadscopereorder=False),
        getvalue=lambda name: ["popen", "popen"],
    )
    scheduler: Any = pytest_xdist_make_scheduler(config, None)
    workers = (Process(SimpleNamespace(id="gw0")), Process(SimpleNamespace(id="gw1")))
    for worker in workers:
        scheduler.add_node(worker)
        scheduler.add_node_collection(worker, tests)
    scheduler.schedule()
    while any(worker.n_done < len(worker.tests) for worker in workers):
        for worker in workers:
            if worker.n_done < len(worker.tests):
                worker.n_done += 1
                scheduler.mark_test_complete(worker, worker.tests[worker.n_done - 1])
    return workers


@pytest.mark.parametrize("n_models", [1, 2, 3, 5])
def test_no_process_is_idle_while_another_has_a_model_to_itself(n_models: int) -> None:
    """One process begins each model; both judge the last of an odd number, from its two ends."""
    models = [f"learned:one?seed={number}" for number in range(n_models)]
    rows = [(f"test_{name}", f"{name}.{row}") for name in ("a", "b", "c", "d") for row in range(5)]
    long = [("test_d", claim.id) for claim in claims() if claim.long]
    tests = [f"claims/{file}.py::test[{model}-{row}]" for model in models for file, row in rows]
    tests += [f"claims/{file}.py::test[{model}-{row}]" for model in models for file, row in long]
    first, second = run_on_two_workers(models, tests)
    assert sorted(first.tests + second.tests) == list(range(len(tests))), "each row once"
    assert abs(first.n_done - second.n_done) <= 10, "two files of claims, of which one was begun"
    worker_models = [{_model(tests[at]) for at in worker.tests} for worker in (first, second)]
    assert len(worker_models[0] & worker_models[1]) == n_models % 2
    for model in models:
        ordered = [test for test in tests if _model(test) == model]
        shares = [[tests[at] for at in worker.tests if _model(tests[at]) == model] for worker in (first, second)]
        owner, helper = sorted(shares, key=lambda share: ordered[0] not in share)
        assert owner == ordered[: len(owner)], "from its beginning, in its order"
        units = list(dict.fromkeys(unit_of(test, models) for test in ordered))
        helper_units = list(dict.fromkeys(unit_of(test, models) for test in helper))
        assert helper_units == units[::-1][: len(helper_units)], "from its end"


def test_the_models_of_a_gpu_run_are_units_too() -> None:
    """Beside the planted models, which `-m gpu` deselects. A name may begin with another one."""
    models = ["planted:pointer@llama", "gemma2-9b", "gemma2-9b-it"]
    assert unit_of("claims/test_a.py::test[gemma2-9b-a.row]", models) == "gemma2-9b claims/test_a.py"
    assert unit_of("claims/test_a.py::test[gemma2-9b-it-a.row]", models) == "gemma2-9b-it claims/test_a.py"
    long = next(claim.id for claim in claims() if claim.long)
    headline = next(claim.id for claim in claims() if claim.headline and not claim.long)
    assert unit_of(f"claims/test_a.py::test[gemma2-9b-{long}]", models).endswith(" long")
    assert unit_of(f"claims/test_a.py::test[gemma2-9b-{headline}]", models).endswith(" headline")


def _model(nodeid: str) -> str:
    return nodeid.partition("[")[2].partition("-")[0]


def test_descriptions_of_a_model_are_merged() -> None:
    """In either order: the helper may not have needed a circuit."""
    full = {"name": "m", "circuit": [[1, 2]], "stages": {"A": "x"}, "graph": {"nodes": []}, "layers": 7}
    evidence = {"file": "f", "pair": None}
    owner = {**full, "evidence": {"x": {**evidence, "seconds": 2.0}, "y": {**evidence, "seconds": 0.1}}}
    helper = {"name": "m", "circuit": [], "stages": {}, "graph": None, "evidence": {"y": {**evidence, "seconds": 3.0}}}
    for descriptions in ([owner, helper], [helper, owner]):
        (merged,) = merge_models(descriptions)
        assert merged == {**full, "evidence": {"x": {**evidence, "seconds": 2.0}, "y": {**evidence, "seconds": 3.0}}}


def collect_rows(*options: str) -> dict[str, list[str]]:
    """The rows of each model that a run would judge, in their order."""
    output = run("--collect-only", "--no-store", *options)
    assert_ok(output)
    rows = defaultdict(list)
    for model, row in re.findall(r"\[(planted:\w+@llama)-(.*)\]", output.stdout):
        rows[model].append(row)
    return rows


@pytest.mark.slow
def test_long_claims_come_last_on_each_model_and_can_be_deselected() -> None:
    """A run that is stopped early has all rows but the long ones, which take longer than all others together."""
    long = {claim.id for claim in claims() if claim.long}
    long_ids = {claim.id for claim in claims() if claim.long and claim.id != claim.sentence}
    assert long_ids == {"circuit.recovers_most.controlled", "circuit.near_full.controlled"}, "others are run in one way"
    by_model, short = collect_rows(), collect_rows("-m", "not gpu and not long")
    assert len(by_model) == 3
    assert set(by_model) == set(short)
    for model, rows in by_model.items():
        long_rows = [row for row in rows if row in long]
        assert len(long_rows) >= 8
        assert rows == [*short[model], *long_rows], model


def test_verdicts_are_listed_in_the_order_of_one_process() -> None:
    """Whichever process judged them, and whichever came first."""
    rows, *_ = collect_rows().values()
    reports = [
        SimpleNamespace(when="call", user_properties=[(PROPERTY, json.dumps(make_row(row).plain()))], sample=[])
        for row in rows
    ]
    for ordered in (reports, reports[::-1]):
        reporter = SimpleNamespace(stats={"passed": ordered[::2], "failed": ordered[1::2]})
        assert [judgement.id for judgement in collect_judgements(reporter)] == rows


def test_the_plugin_imports_no_large_library() -> None:
    code = f"import sys, fixtures.plugin; print([name for name in {HEAVY!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_a_worker_that_is_interrupted_at_its_end_prints_and_writes_nothing(tmp_path: Path) -> None:
    """A run that comes to its end, and whose worker is interrupted when it has sent everything, is not called
    interrupted. A worker knows its own claims only; writing them takes it so long that execnet interrupts it."""
    options = ("--model", "planted:pointer", "-k", "q_redirects and not controlled", "--samples", "12", "--no-store")
    report = tmp_path / "report"
    result = run(*options, "-n", "1", "--report", str(report), "-p", interrupted_worker.__name__)
    assert_ok(result)
    assert (report / "claims.json").exists()
    for text in ("interrupted", "Exit:", "KeyboardInterrupt", "Traceback"):
        assert text not in result.stdout + result.stderr
    assert f"{interrupted_worker.SENT} gw0" in result.stderr, "the plugin did not interrupt the worker"
    assert result.stdout.count("  binding.q_redirects ") == 1, "the table is printed once"
    assert interrupted_worker.WROTE not in result.stderr
