"""Ctrl-C at any stage: one line, status 2, no half of anything, and the same command goes on from its store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.everyday import sampled
from tests.oracles.faults.commands import tried
from tests.oracles.faults.moments import CLAIMS, DISCOVER

MOMENTS = {"claims": CLAIMS, "discover": DISCOVER}
EVERYDAY = {"claims": ("replay", "the last of its tables"), "discover": ("import", "recording", "the picture")}
EARLY = ("import", "load", "self-check")
"""Moments at which nothing can have been kept yet."""
LATE = ("the picture", "the page")
"""Moments at which results are there already."""
TOLD = {
    "claims": "interrupted; finished evidence is in {store}: the same command goes on from there and writes the report",
    "discover": "python -m rebinding discover: interrupted; finished evidence is in the store (unless --no-store). Run"
    " the same command again to continue",
}


def check(name: str, moment: str, found: dict[str, Any], undisturbed: dict[str, Any], folder: Path) -> None:
    said = found["said"]
    assert found["code"] == 2, said
    assert said.count("interrupted") == said.count(TOLD[name].format(store=folder / "tried" / "store")) == 1, said
    assert not [one for one in ("Traceback", "KeyboardInterrupt", "INTERNALERROR", ".py") if one in said], said
    assert not found["parts"]
    assert not found["other"], "the store has something that an undisturbed run does not leave"
    assert bool(found["kept"]) == (moment not in EARLY)
    assert len(found["old"]) == len(undisturbed["new"]) or moment in LATE
    assert found["again"]["code"] == 0, found["again"]["said"]
    assert found["same"]
    assert found["new"] == undisturbed["new"]


@pytest.mark.parametrize("name", sampled(MOMENTS, "discover"))
def test_ctrl_c(name: str, tmp_path: Path) -> None:
    found = tried(tmp_path, name, "interrupt", EVERYDAY[name])
    for moment in EVERYDAY[name]:
        check(name, moment, found[moment], found["undisturbed"], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", MOMENTS)
def test_ctrl_c_at_every_stage(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = tried(tmp_path, name, "interrupt", list(MOMENTS[name]))
    for moment in MOMENTS[name]:
        check(name, moment, found[moment], found["undisturbed"], tmp_path)
    with capsys.disabled():
        print(f"\n{name}: Ctrl-C at {len(MOMENTS[name])} stages; each went on to the same bytes")
