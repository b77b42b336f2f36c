"""Indirect objects in the real model: the notebook gives what is stored in it, and the example suite is judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.docs.examples import check_words
from tests.docs.notebooks import code, read, run
from tests.suites import test_door
from tests.suites.test_ioi_suite import SUITE

NOTEBOOK = Path(__file__).parents[2] / "docs" / "tutorials" / "real" / "indirect-objects.ipynb"
SHARE, LAST_DIGIT = 2e-2, 2e-2
"""Of numbers printed with two decimals, on another processor: Q4 weights, thirty layers in float32."""


def test_notebook_prints_what_is_stored(smollm2_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REBINDING_SMOLLM2", str(smollm2_file))
    notebook = read(NOTEBOOK)
    outputs = run(notebook)
    n_figures = 0
    for cell, actual in zip(code(notebook), outputs, strict=True):
        stored = cell["outputs"]
        assert [output["output_type"] for output in actual] == [output["output_type"] for output in stored]
        for own, other in zip(actual, stored, strict=True):
            n_figures += "image/png" in own.get("data", {})
            check_words("".join(own.get("text", "")), "".join(other.get("text", "")), SHARE, LAST_DIGIT)
    assert n_figures == 3


OPEN = {"ioi.name_movers.controlled": "INCONCLUSIVE"}
"""In the layers of the name movers stands a head that takes the giver's name away; random draws hit it or not."""


def test_the_example_suite_is_judged_on_the_real_model(smollm2_file: Path, tmp_path: Path) -> None:
    done = test_door.run(tmp_path, str(SUITE), "--model", str(smollm2_file), "--no-store", "--report", "report")
    assert done.returncode == 0, done.stdout
    rows = json.loads((tmp_path / "report" / "claims.json").read_text("utf-8"))["claims"]
    assert len(rows) == 6
    assert {row["id"]: row["verdict"] for row in rows if row["verdict"] != "REPLICATED"} == OPEN
