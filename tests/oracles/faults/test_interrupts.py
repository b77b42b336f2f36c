"""Ctrl-C at any stage: one line, status 2, no half of anything, and the same command goes on from its store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.everyday import sampled
from tests.oracles.faults.commands import run_at_moments
from tests.oracles.faults.moments import CLAIMS, DISCOVER

MOMENTS = {"claims": CLAIMS, "discover": DISCOVER}
EVERYDAY = {"claims": ("replay", "the last of its tables"), "discover": ("import", "recording", "the picture")}
FIRST_MOMENTS = ("import", "load", "self-check")
"""Moments at which nothing can have been kept yet."""
LAST_MOMENTS = ("the picture", "the page")
"""Moments at which results are there already."""
MESSAGES = {
    "claims": "interrupted; finished evidence is in {store}: the same command goes on from there and writes the report",
    "discover": "rebinding discover: interrupted; finished evidence is in the store (unless --no-store). Run"
    " the same command again to continue",
}


def check(name: str, moment: str, outcome: dict[str, Any], baseline: dict[str, Any], folder: Path) -> None:
    output = outcome["said"]
    assert outcome["code"] == 2, output
    assert output.count("interrupted") == output.count(MESSAGES[name].format(store=folder / "tried" / "store")) == 1, (
        output
    )
    assert not [word for word in ("Traceback", "KeyboardInterrupt", "INTERNALERROR", ".py") if word in output], output
    assert not outcome["parts"]
    assert not outcome["other"], "the store has something that an undisturbed run does not leave"
    assert bool(outcome["kept"]) == (moment not in FIRST_MOMENTS)
    assert len(outcome["old"]) == len(baseline["new"]) or moment in LAST_MOMENTS
    assert outcome["again"]["code"] == 0, outcome["again"]["said"]
    assert outcome["same"]
    assert outcome["new"] == baseline["new"]


@pytest.mark.parametrize("name", sampled(MOMENTS, "discover"))
def test_ctrl_c(name: str, tmp_path: Path) -> None:
    outcomes = run_at_moments(tmp_path, name, "interrupt", EVERYDAY[name])
    for moment in EVERYDAY[name]:
        check(name, moment, outcomes[moment], outcomes["undisturbed"], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", MOMENTS)
def test_ctrl_c_at_every_stage(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = run_at_moments(tmp_path, name, "interrupt", list(MOMENTS[name]))
    for moment in MOMENTS[name]:
        check(name, moment, outcomes[moment], outcomes["undisturbed"], tmp_path)
    with capsys.disabled():
        print(f"\n{name}: Ctrl-C at {len(MOMENTS[name])} stages; each went on to the same bytes")
