"""Ctrl-C or a full disk at any stage of a command: one line, no half of anything, and the same command goes on.

`python -m tests.oracles.faults.interrupted_commands` fills a real file system; see docs/faults.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.oracles.faults.interrupted_commands import COMMANDS
from tests.oracles.faults.processes import run_module

FIRST_MOMENTS = ("import", "load", "self-check")
"""Moments at which nothing can have been kept yet."""
LAST_MOMENTS = ("the picture", "the page")
"""Moments at which results are there already."""
MESSAGES = {
    "claims": "interrupted; finished evidence is in {store}: the same command goes on from there and writes the report",
    "discover": "rebinding discover: interrupted; finished evidence is in the store (unless --no-store). Run"
    " the same command again to continue",
}
FULL_DISK_MESSAGES = {
    "claims": "Exit: no report in {out}: ",
    "discover": "rebinding discover: {out}/circuit.json: File too large",
}
FULL_DISK_CODES = {"claims": pytest.ExitCode.USAGE_ERROR, "discover": 2}


def outcomes_at(moments: Sequence[str], name: str, act: str, folder: Path) -> list[tuple[str, dict[str, Any]]]:
    """What a process of its own saw at each moment, after what is the same of every interruption was checked."""
    outcomes = run_module("interrupted_commands", folder, name, act, *moments)
    baseline = outcomes.pop("undisturbed")
    assert list(outcomes) == list(moments)
    for moment, outcome in outcomes.items():
        output = outcome["output"]
        assert not [word for word in ("Traceback", "KeyboardInterrupt", "INTERNALERROR") if word in output], output
        assert not outcome["parts"]
        assert not outcome["other"], "the store has something that an undisturbed run does not leave"
        assert len(outcome["old"]) == len(baseline["new"]) or moment in LAST_MOMENTS
        assert outcome["again"]["code"] == 0, outcome["again"]["output"]
        assert outcome["same"]
        assert outcome["new"] == baseline["new"]
    return list(outcomes.items())


@pytest.mark.parametrize(
    ("name", "moments"),
    [
        ("discover", ("import", "recording", "the picture")),
        *(pytest.param(name, tuple(COMMANDS[name].moments), marks=pytest.mark.slow) for name in COMMANDS),
    ],
)
def test_ctrl_c_leaves_one_line_and_the_command_continues(name: str, moments: tuple[str, ...], tmp_path: Path) -> None:
    message = MESSAGES[name].format(store=tmp_path / "tried" / "store")
    for moment, outcome in outcomes_at(moments, name, "interrupt", tmp_path):
        output = outcome["output"]
        assert outcome["code"] == 2, output
        assert output.count("interrupted") == output.count(message) == 1, output
        assert ".py" not in output, output
        assert bool(outcome["kept"]) == (moment not in FIRST_MOMENTS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "moments"), [("claims", ("keeping", "the last of its tables", "the page")), ("discover", ("keeping",))]
)
def test_a_full_disk_is_reported_and_the_command_continues(name: str, moments: tuple[str, ...], tmp_path: Path) -> None:
    out, store = tmp_path / "tried" / "out", tmp_path / "tried" / "store"
    for moment, outcome in outcomes_at(moments, name, "fill_disk", tmp_path):
        output = outcome["output"]
        assert outcome["code"] == FULL_DISK_CODES[name], output
        assert output.count(FULL_DISK_MESSAGES[name].format(out=out)) == 1, output
        assert (f"evidence cannot be stored in {store}" in output) == (moment == "keeping")
        assert outcome["kept"]
