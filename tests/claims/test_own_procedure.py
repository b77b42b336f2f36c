"""A convention that somebody changes reaches every row that it concerns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.claims.run_claims import run

BINDING = "table.q.dR or correct_only.similar or no_kv_leak or third_slot"


def judge_with(folder: Path, convention: str, rows: str) -> list[dict[str, Any]]:
    """The published rows, judged with one changed convention."""
    file = folder / "mine.toml"
    file.write_text(f'like = "published"\n{convention}\n')
    run("--model", "planted:pointer", "--procedure", str(file), "-k", rows, "--no-store", "--samples", "12",
        "--report", str(folder / "out"))  # fmt: skip
    claims: list[dict[str, Any]] = json.loads((folder / "out" / "claims.json").read_text())["claims"]
    return claims


@pytest.mark.slow
def test_several_sets_of_directions_are_crossed_with_prompts(tmp_path: Path) -> None:
    """The published rows take one set; with two, their numbers are of sets and prompts, and every row is judged."""
    claims = judge_with(tmp_path, "[binding]\nbatches = 2", BINDING)
    assert len(claims) == 4
    assert {row["verdict"] for row in claims} <= {"REPLICATED", "NOT REPLICATED", "INCONCLUSIVE"}
    assert all(row["n"] for row in claims)
