"""What a run takes upon itself: whole models a process, and no library before it is needed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from claims.catalogue import claims
from fixtures.options import SETTINGS
from fixtures.report import merged
from fixtures.sharing import pytest_xdist_make_scheduler, unit_of
from fixtures.transport import PROPERTY, gathered
from tests.claims.runs import ROOT, ok, run
from tests.report.folders import judged

HEAVY = ("transformers.modeling_utils", "nnsight", "matplotlib", "huggingface_hub", "rebinding.report.page",
         "pydantic")  # fmt: skip


@pytest.mark.slow
def test_each_process_takes_whole_models() -> None:
    models = ("--model", "planted:pointer", "--model", "planted:global")
    done = run(*models, "-n", "2", "-vv", "--no-store", "--samples", "12", "-k", "D_q_C or group_e")
    ok(done)
    workers = defaultdict(set)
    for worker, model in re.findall(r"\[(gw\d)\].*?\[(planted:\w+@llama)-", done.stdout):
        workers[model].add(worker)
    assert {model: len(names) for model, names in workers.items()} == {
        "planted:pointer@llama": 1,
        "planted:global@llama": 1,
    }
    assert set.union(*workers.values()) == {"gw0", "gw1"}


@dataclass(eq=False)
class Process:
    """What a scheduler of pytest-xdist sees of a worker, and what it was told to do."""

    gateway: SimpleNamespace
    shutting_down: bool = False
    given: list[int] = field(default_factory=list)
    done: int = 0

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def judged_by_two(models: list[str], tests: list[str]) -> tuple[Process, Process]:
    """Two workers that need as long for every test, until nothing is left."""
    config: Any = SimpleNamespace(
        stash={SETTINGS: SimpleNamespace(models=[SimpleNamespace(name=one, by_default=False) for one in models])},
        args=["claims"],
        rootpath=ROOT,
        invocation_params=SimpleNamespace(dir=ROOT),
        option=SimpleNamespace(loadscopereorder=False),
        getvalue=lambda name: ["popen", "popen"],
    )
    shared: Any = pytest_xdist_make_scheduler(config, None)
    workers = (Process(SimpleNamespace(id="gw0")), Process(SimpleNamespace(id="gw1")))
    for worker in workers:
        shared.add_node(worker)
        shared.add_node_collection(worker, tests)
    shared.schedule()
    while any(worker.done < len(worker.given) for worker in workers):
        for worker in workers:
            if worker.done < len(worker.given):
                worker.done += 1
                shared.mark_test_complete(worker, worker.given[worker.done - 1])
    return workers


@pytest.mark.parametrize("n_models", [1, 2, 3, 5])
def test_no_process_is_idle_while_another_has_a_model_to_itself(n_models: int) -> None:
    """Each model is begun by one process; the last of an odd number is judged by both, from its ends."""
    models = [f"learned:one?seed={number}" for number in range(n_models)]
    rows = [(f"test_{name}", f"{name}.{row}") for name in ("a", "b", "c", "d") for row in range(5)]
    long = [("test_d", claim.id) for claim in claims() if claim.long]
    tests = [f"claims/{file}.py::test[{model}-{row}]" for model in models for file, row in rows]
    tests += [f"claims/{file}.py::test[{model}-{row}]" for model in models for file, row in long]
    first, second = judged_by_two(models, tests)
    assert sorted(first.given + second.given) == list(range(len(tests))), "each row once"
    assert abs(first.done - second.done) <= 10, "two files of claims, of which one was begun"
    begun = [list(dict.fromkeys(_model(tests[at]) for at in worker.given)) for worker in (first, second)]
    both = set(begun[0]) & set(begun[1])
    assert len(both) == n_models % 2
    for model in models:
        ordered = [one for one in tests if _model(one) == model]
        shares = [[tests[at] for at in worker.given if _model(tests[at]) == model] for worker in (first, second)]
        owner, helper = sorted(shares, key=lambda share: ordered[0] not in share)
        assert owner == ordered[: len(owner)], "from its beginning, in its order"
        units = list(dict.fromkeys(unit_of(one, models) for one in ordered))
        helped = list(dict.fromkeys(unit_of(one, models) for one in helper))
        assert helped == units[::-1][: len(helped)], "from its end"


def _model(nodeid: str) -> str:
    return nodeid.partition("[")[2].partition("-")[0]


def test_what_either_process_knows_of_a_model_is_told() -> None:
    """The helper may have had no use for a circuit, and comes last all the same."""
    whole = {"name": "m", "circuit": [[1, 2]], "stages": {"A": "x"}, "graph": {"nodes": []}, "layers": 7}
    evidence = {"file": "f", "pair": None}
    one = {**whole, "evidence": {"x": {**evidence, "seconds": 2.0}, "y": {**evidence, "seconds": 0.1}}}
    other = {"name": "m", "circuit": [], "stages": {}, "graph": None, "evidence": {"y": {**evidence, "seconds": 3.0}}}
    for shares in ([one, other], [other, one]):
        (told,) = merged(shares)
        assert told == {**whole, "evidence": {"x": {**evidence, "seconds": 2.0}, "y": {**evidence, "seconds": 3.0}}}


def collected(*options: str) -> dict[str, list[str]]:
    """The rows that each model would be judged on, in their order."""
    listed = run("--collect-only", "--no-store", *options)
    ok(listed)
    rows = defaultdict(list)
    for model, row in re.findall(r"\[(planted:\w+@llama)-(.*)\]", listed.stdout):
        rows[model].append(row)
    return rows


@pytest.mark.slow
def test_what_takes_longest_comes_last_on_each_model_and_can_be_left_out() -> None:
    """Whoever stops a run early has all rows but those that take longer than the others together."""
    long = {claim.id for claim in claims() if claim.long}
    twice = {claim.id for claim in claims() if claim.long and claim.id != claim.sentence}
    assert twice == {"circuit.recovers_most.controlled", "circuit.near_full.controlled"}, "others are run in one way"
    every, short = collected(), collected("-m", "not gpu and not long")
    assert len(every) == 3
    assert set(every) == set(short)
    for model, rows in every.items():
        asked = [row for row in rows if row in long]
        assert len(asked) >= 8
        assert rows == [*short[model], *asked], model


def test_verdicts_are_told_in_the_order_of_one_process() -> None:
    """Whoever judged them, and whichever came first."""
    rows, *_ = collected().values()
    reports = [
        SimpleNamespace(when="call", user_properties=[(PROPERTY, json.dumps(judged(row).plain()))], sample=[])
        for row in rows
    ]
    for given in (reports, reports[::-1]):
        told = SimpleNamespace(stats={"passed": given[::2], "failed": given[1::2]})
        assert [one.id for one in gathered(told)] == rows


def test_nothing_heavy_is_imported_to_begin_with() -> None:
    code = f"import sys, fixtures.plugin; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
