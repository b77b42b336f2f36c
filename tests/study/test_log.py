"""Gates on evidence of circuits that are taken out: the circuit must move, one random set need not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from rebinding.experiments.ablation import CircuitVariant
from rebinding.experiments.circuit.request import KNOCKOUT
from rebinding.study.gates import gates_of

NAN = float("nan")


def failing(circuit: float, random: tuple[float, float]) -> list[str]:
    """The gates that fail on two prompts with the whole model, a circuit and two random sets that move so much."""
    changes = {("full", -1): 0.0, ("circuit", -1): circuit, ("random", 0): random[0], ("random", 1): random[1]}
    lines: list[dict[str, Any]] = [
        {"prompt": prompt, "variant": variant, "group": "", "layer": -1, "head": -1, "draw": draw}
        | {"label_logit": 1.0, "margin": 1.0, "hit": True, "probability": 0.5, "relative_change": change}
        for (variant, draw), change in changes.items()
        for prompt in (7, 8)
    ]
    evidence = KNOCKOUT.evidence(pd.DataFrame(lines), {})
    request: Any = SimpleNamespace(KIND=KNOCKOUT, n=2, edit_columns=KNOCKOUT.edit_columns)
    return [gate.name for gate in gates_of(request, evidence) if not gate.passed]


@pytest.mark.parametrize(
    ("circuit", "random", "fails"),
    [
        (0.5, (0.5, 0.0), []),  # one random set stands at its means: that is what it is worth
        (0.0, (0.5, 0.5), ["edits_change_values"]),
        (NAN, (0.5, 0.5), ["finite", "edits_change_values"]),  # nobody noted that the circuit moved
        (0.5, (0.0, 0.0), ["edits_change_values"]),  # nothing to compare with
    ],
)
def test_a_circuit_that_is_taken_out_must_move(circuit: float, random: tuple[float, float], fails: list[str]) -> None:
    assert failing(circuit, random) == fails


def test_missing_head_and_draw_are_logged_as_none() -> None:
    """0 is the first layer, its first head, and the first draw."""
    assert CircuitVariant("circuit")[2:] == (-1, -1, -1)
