"""Every gate on evidence fires, from the command line to the verdict; without a fault the same row is judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.claims.run_claims import run, verdicts
from tests.everyday import sampled
from tests.study.faulty import FAULTS

ROW = "roles.b_moves_pointer"
OTHER_ROWS = {"circuit_found": "circuit.three_to_ten_percent"}
"""A plant comes with its circuit, so only rows on what is found miss one that is not."""
MODEL_BY_GATE = {"noise_floor": "planted:pointer@gemma2"}
"""Where a fault shows on one architecture: in 16 bits this one is off by 0.2 logits, for a margin of 0.25."""
EVERYDAY = ("finite", "edits_change_values", "replay_equals_forward", "noise_floor")


def judged(tmp_path: Path, model: str, row: str = ROW, **environment: str) -> str:
    junit = tmp_path / "found.xml"
    run("-p", "tests.study.faulty", "--model", model, "--samples", "12", "--no-store", "-k", row,
        "--junitxml", str(junit), **environment)  # fmt: skip
    return verdicts(junit)[row]


@pytest.mark.parametrize("gate", sampled(FAULTS, *EVERYDAY))
def test_a_fault_makes_the_row_invalid(gate: str, tmp_path: Path) -> None:
    row, model = OTHER_ROWS.get(gate, ROW), MODEL_BY_GATE.get(gate, "planted:pointer")
    assert judged(tmp_path, model, row, FAULT=gate) == f"INVALID ({gate})"


@pytest.mark.parametrize("model", sampled(["planted:pointer", *MODEL_BY_GATE.values()]))
def test_row_without_a_fault_is_judged(model: str, tmp_path: Path) -> None:
    assert judged(tmp_path, model) in ("REPLICATED", "INCONCLUSIVE")


@pytest.mark.parametrize("row", OTHER_ROWS.values())
@pytest.mark.slow
def test_other_rows_without_a_fault_are_judged(row: str, tmp_path: Path) -> None:
    assert judged(tmp_path, "planted:pointer", row) in ("REPLICATED", "NOT REPLICATED", "INCONCLUSIVE")
