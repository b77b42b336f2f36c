"""Every kind of experiment runs on every family: layers without heads, head sizes that differ, reused keys."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from rebinding.evidence import Evidence
from rebinding.experiments.workbench import Workbench
from rebinding.models import load
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.surgery import Anatomy
from tests.accelerator.setup import numbers, requests
from tests.everyday import sampled
from tests.families.folders import save_family
from tests.families.models import FAMILIES, Family, RandomModel

ROLES = {
    "A": "readout",
    "B": "readout",
    "C": "question_box",
    "D": "swap_partner",
    "E": "context_asked_object",
}
EVERYDAY: tuple[Family, ...] = ("qwen3_next", "gemma4_text")


def draw_circuit(anatomy: Anatomy) -> Circuit:
    """Two heads a group, from all layers that have heads; those at the readout from the upper half."""
    upper = anatomy.heads[len(anatomy.heads) // 2 :]
    pools = {group: upper if role == "readout" else anatomy.heads for group, role in ROLES.items()}
    return Circuit(
        tuple(
            CircuitHead(group, *head, ROLES[group])
            for group, pool in pools.items()
            for head in random.Random(group).sample(pool, 2)
        )
    )


def changes(evidence: Evidence) -> float:
    """The largest difference between a column and the one that says what it was before the edit."""
    rows = evidence.rows
    pairs = [("before", "after"), ("logit_orig", "logit_patch")]
    return max((float((rows[a] - rows[b]).abs().max()) for a, b in pairs if {a, b} <= set(rows)), default=np.inf)


@pytest.mark.parametrize("family", sampled(FAMILIES, *EVERYDAY))
def test_every_experiment_runs(family: Family, tmp_path: Path) -> None:
    """Its numbers are finite, and its edits change them."""
    bench = Workbench(load(str(save_family(RandomModel(family), tmp_path / family))))
    outcomes = {}
    for kind, request in requests(bench, draw_circuit(bench.loaded_model.anatomy)):
        evidence = bench.get(request)
        outcomes[kind] = all(np.isfinite(column).all() for column in numbers(evidence).values())
        assert changes(evidence) > 0, kind
    assert len(outcomes) >= 12
    assert all(outcomes.values()), outcomes
