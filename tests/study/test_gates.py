"""Every gate on evidence fires, from the command line to the verdict; without a fault the same row is judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.claims.runs import run, verdicts
from tests.study.faulty import FAULTS

ROW = "roles.b_moves_pointer"
ON = {"noise_floor": "planted:pointer@gemma2"}
"""Where a fault shows on one architecture: in 16 bits this one is off by 0.2 logits, for a margin of 0.25."""


def judged(tmp_path: Path, model: str, **environment: str) -> str:
    junit = tmp_path / "found.xml"
    run("-p", "tests.study.faulty", "--model", model, "--samples", "12", "--no-store", "-k", ROW,
        "--junitxml", str(junit), **environment)  # fmt: skip
    return verdicts(junit)[ROW]


@pytest.mark.parametrize("gate", FAULTS)
def test_a_fault_makes_the_row_invalid(gate: str, tmp_path: Path) -> None:
    assert judged(tmp_path, ON.get(gate, "planted:pointer"), FAULT=gate) == f"INVALID ({gate})"


@pytest.mark.parametrize("model", ["planted:pointer", *ON.values()])
def test_without_a_fault_it_is_judged(model: str, tmp_path: Path) -> None:
    assert judged(tmp_path, model) in ("REPLICATED", "INCONCLUSIVE")
