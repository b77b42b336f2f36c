"""A full disk, from some moment on: verdicts are unchanged, one line names the place, no file is half written.

`python -m tests.oracles.faults.interrupted_commands` fills a real file system; see docs/faults.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.oracles.faults.commands import run_at_moments

MOMENTS_BY_COMMAND = {"claims": ("keeping", "the last of its tables", "the page"), "discover": ("keeping",)}
CODES = {"claims": pytest.ExitCode.USAGE_ERROR, "discover": 2}


def check(name: str, moment: str, outcome: dict[str, Any], baseline: dict[str, Any], folder: Path) -> None:
    output, out, store = outcome["said"], folder / "tried" / "out", folder / "tried" / "store"
    assert outcome["code"] == CODES[name], output
    expected_output = {
        "claims": f"Exit: no report in {out}: ",
        "discover": f"rebinding discover: {out}/circuit.json: File too large",
    }[name]
    assert output.count(expected_output) == 1, output
    assert "Traceback" not in output
    assert "INTERNALERROR" not in output
    assert (f"evidence cannot be stored in {store}" in output) == (moment == "keeping")
    assert not outcome["parts"]
    assert not outcome["other"]
    assert outcome["kept"]
    assert len(outcome["old"]) == len(baseline["new"]) or moment == "the page"
    assert outcome["again"]["code"] == 0, outcome["again"]["said"]
    assert outcome["same"]
    assert outcome["new"] == baseline["new"]


@pytest.mark.slow
@pytest.mark.parametrize("name", MOMENTS_BY_COMMAND)
def test_full_disk_is_reported(name: str, tmp_path: Path) -> None:
    everyday = MOMENTS_BY_COMMAND[name][:1]
    outcomes = run_at_moments(tmp_path, name, "fill_disk", everyday)
    for moment in everyday:
        check(name, moment, outcomes[moment], outcomes["undisturbed"], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", MOMENTS_BY_COMMAND)
def test_full_disk_is_reported_at_every_moment(name: str, tmp_path: Path) -> None:
    outcomes = run_at_moments(tmp_path, name, "fill_disk", MOMENTS_BY_COMMAND[name])
    for moment in MOMENTS_BY_COMMAND[name]:
        check(name, moment, outcomes[moment], outcomes["undisturbed"], tmp_path)
