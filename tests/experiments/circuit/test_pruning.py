"""The circuit after pruning: on made-up walks, and on a plant whose circuit is cut in two."""

from __future__ import annotations

import pandas as pd
import pytest

from rebinding.evidence import Evidence
from rebinding.experiments.circuit.request import request_pruning
from rebinding.experiments.circuit.summary import circuit_after_pruning, circuit_after_walk, circuit_works_alone
from rebinding.experiments.paths.request import conventions_of_plant
from rebinding.experiments.workbench import Workbench
from rebinding.models import load
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.paper.procedure import builtin_procedure
from rebinding.planted import build

HEADS = (CircuitHead("A", 9, 1, "readout"), CircuitHead("B", 7, 2, "readout"), CircuitHead("C", 5, 3, "question_box"))


def walk(circuit: float, full: float) -> Evidence:
    """One walk in which the middle head goes, and one in which all go."""
    rows = [
        {
            **head._asdict(),
            "order": order,
            "full_model": full,
            "before": circuit - 0.1 * number,
            "drop": 0.0,
            "removed": removed,
        }
        for order in (0, 1)
        for number, head in enumerate(HEADS)
        for removed in [order == 1 or number == 1]
    ]
    return Evidence("pruning", pd.DataFrame(rows), {})


@pytest.mark.parametrize(("value", "stands"), [(9.0, True), (5.0, True), (4.9, False), (0.0, False), (-3.0, False)])
def test_half_of_the_models_measure(value: float, stands: bool) -> None:
    result = walk(value, full=10.0)
    assert circuit_works_alone(result) is stands
    assert circuit_after_walk(result).heads == (HEADS[0], HEADS[2])
    assert circuit_after_pruning(result).heads == ((HEADS[0], HEADS[2]) if stands else HEADS)


def test_a_plant_with_and_without_group_c() -> None:
    """The planted circuit stands alone; without C, which tells B where to look, it does not, and the walk would empty
    it of heads that do what they did before."""
    bench, full = Workbench(load("planted:pointer")), Circuit(build("pointer").circuit)
    half = full.without(full.groups["C"])
    conventions = conventions_of_plant(builtin_procedure("controlled").circuit, "controlled")
    result = {
        name: bench.get(request_pruning(bench.prompts, heads, conventions, n=12))
        for name, heads in (("whole", full), ("half", half))
    }
    assert circuit_works_alone(result["whole"])
    assert circuit_after_pruning(result["whole"]) == circuit_after_walk(result["whole"])
    assert not circuit_works_alone(result["half"])
    assert circuit_after_pruning(result["half"]) == half
    assert len(circuit_after_walk(result["half"]).heads) < len(half.heads)
