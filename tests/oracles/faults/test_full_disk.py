"""No room on the disk, from some moment on: verdicts all the same, one line that says where, nothing half written.

`python -m tests.oracles.faults.interrupted_commands` fills a real file system; see docs/faults.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.oracles.faults.commands import tried

WHEN = {"claims": ("keeping", "the last of its tables", "the page"), "discover": ("keeping",)}
CODES = {"claims": pytest.ExitCode.USAGE_ERROR, "discover": 2}


def check(name: str, moment: str, found: dict[str, Any], undisturbed: dict[str, Any], folder: Path) -> None:
    said, out, store = found["said"], folder / "tried" / "out", folder / "tried" / "store"
    assert found["code"] == CODES[name], said
    told = {
        "claims": f"Exit: no report in {out}: ",
        "discover": f"python -m rebinding discover: {out}/circuit.json: File too large",
    }[name]
    assert said.count(told) == 1, said
    assert "Traceback" not in said
    assert "INTERNALERROR" not in said
    assert (f"evidence cannot be stored in {store}" in said) == (moment == "keeping")
    assert not found["parts"]
    assert not found["other"]
    assert found["kept"]
    assert len(found["old"]) == len(undisturbed["new"]) or moment == "the page"
    assert found["again"]["code"] == 0, found["again"]["said"]
    assert found["same"]
    assert found["new"] == undisturbed["new"]


@pytest.mark.slow
@pytest.mark.parametrize("name", WHEN)
def test_no_room(name: str, tmp_path: Path) -> None:
    everyday = WHEN[name][:1]
    found = tried(tmp_path, name, "no_room", everyday)
    for moment in everyday:
        check(name, moment, found[moment], found["undisturbed"], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", WHEN)
def test_no_room_from_any_moment(name: str, tmp_path: Path) -> None:
    found = tried(tmp_path, name, "no_room", WHEN[name])
    for moment in WHEN[name]:
        check(name, moment, found[moment], found["undisturbed"], tmp_path)
