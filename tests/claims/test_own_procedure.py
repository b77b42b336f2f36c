"""A convention that somebody changes reaches every row that it concerns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.claims.runs import run

BINDING = "table.q.dR or correct_only.similar or no_kv_leak or third_slot"


def judged(there: Path, convention: str, rows: str) -> list[dict[str, Any]]:
    """What published rows come to where one convention is another."""
    file = there / "mine.toml"
    file.write_text(f'like = "published"\n{convention}\n')
    run("--model", "planted:pointer", "--procedure", str(file), "-k", rows, "--no-store", "--samples", "12",
        "--report", str(there / "out"))  # fmt: skip
    found: list[dict[str, Any]] = json.loads((there / "out" / "claims.json").read_text())["claims"]
    return found


@pytest.mark.slow
def test_several_sets_of_directions_are_crossed_with_prompts(tmp_path: Path) -> None:
    """The published rows take one set; with two, their numbers are of sets and prompts, and every row is judged."""
    found = judged(tmp_path, "[binding]\nbatches = 2", BINDING)
    assert len(found) == 4
    assert {one["verdict"] for one in found} <= {"REPLICATED", "NOT REPLICATED", "INCONCLUSIVE"}
    assert all(one["n"] for one in found)
