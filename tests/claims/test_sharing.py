"""What a run takes upon itself: whole models a process, and no library before it is needed."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict

from rebinding.paper.claim import CONTROLLED
from rebinding.power.rows import claims
from tests.claims.runs import ROOT, ok, run

HEAVY = ("transformers.modeling_utils", "nnsight", "matplotlib", "huggingface_hub", "rebinding.report.page")


def test_each_process_takes_whole_models() -> None:
    done = run("-n", "2", "-vv", "--no-store", "--samples", "12", "-k", "D_q_C or group_e")
    ok(done)
    workers = defaultdict(set)
    for worker, model in re.findall(r"\[(gw\d)\].*?\[(planted:\w+@llama)-", done.stdout):
        workers[model].add(worker)
    assert {model: len(names) for model, names in workers.items()} == {
        "planted:pointer@llama": 1,
        "planted:global@llama": 1,
    }
    assert set.union(*workers.values()) == {"gw0", "gw1"}


def collected(*options: str) -> dict[str, list[str]]:
    """The rows that each model would be judged on, in their order."""
    listed = run("--collect-only", "--no-store", *options)
    ok(listed)
    rows = defaultdict(list)
    for model, row in re.findall(r"\[(planted:\w+@llama)-(.*)\]", listed.stdout):
        rows[model].append(row)
    return rows


def test_what_takes_longest_comes_last_on_each_model_and_can_be_left_out() -> None:
    """Whoever stops a run early has all rows but those that take longer than the others together."""
    long = {claim.id for claim in claims() if claim.long}
    assert not any(one.endswith(CONTROLLED) for one in long), "these are run in one way"
    every, short = collected(), collected("-m", "not gpu and not long")
    assert len(every) == 2
    assert set(every) == set(short)
    for model, rows in every.items():
        asked = [row for row in rows if row in long]
        assert len(asked) >= 8
        assert rows == [*short[model], *asked], model


def test_nothing_heavy_is_imported_to_begin_with() -> None:
    code = f"import sys, fixtures.plugin; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
