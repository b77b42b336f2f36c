"""The notebook on indirect objects runs on the real model and gives what is stored in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.examples import check_words
from tests.docs.notebooks import code, read, run

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
