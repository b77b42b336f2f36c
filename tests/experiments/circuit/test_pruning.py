"""What pruning leaves, and when it is asked: on made-up walks, and on a plant whose circuit is cut in two."""

from __future__ import annotations

import pandas as pd
import pytest

from rebinding.evidence import Evidence
from rebinding.experiments.circuit.request import request_pruning
from rebinding.experiments.circuit.summary import kept, left, stands_alone
from rebinding.experiments.paths.request import conventions_of_plant
from rebinding.experiments.workbench import Workbench
from rebinding.models import load
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.paper.procedure import given
from rebinding.planted import build

HEADS = (CircuitHead("A", 9, 1, "readout"), CircuitHead("B", 7, 2, "readout"), CircuitHead("C", 5, 3, "question_box"))


def walk(alone: float, whole: float) -> Evidence:
    """One walk in which the middle head goes, and one in which all go."""
    rows = [
        {**head._asdict(), "order": order, "whole": whole, "before": alone - 0.1 * number, "drop": 0.0, "removed": gone}
        for order in (0, 1)
        for number, head in enumerate(HEADS)
        for gone in [order == 1 or number == 1]
    ]
    return Evidence("pruning", pd.DataFrame(rows), {})


@pytest.mark.parametrize(("alone", "stands"), [(9.0, True), (5.0, True), (4.9, False), (0.0, False), (-3.0, False)])
def test_half_of_the_models_measure(alone: float, stands: bool) -> None:
    found = walk(alone, whole=10.0)
    assert stands_alone(found) is stands
    assert left(found).heads == (HEADS[0], HEADS[2])
    assert kept(found).heads == ((HEADS[0], HEADS[2]) if stands else HEADS)


def test_a_plant_whole_and_without_what_it_asks() -> None:
    """The planted circuit stands alone; without C, which tells B where to look, it does not, and the walk would empty
    it of heads that do what they did before."""
    bench, whole = Workbench(load("planted:pointer")), Circuit(build("pointer").circuit)
    half = whole.without(whole.groups["C"])
    conventions = conventions_of_plant(given("controlled").circuit, "controlled")
    found = {
        name: bench.get(request_pruning(bench.prompts, one, conventions, n=12))
        for name, one in (("whole", whole), ("half", half))
    }
    assert stands_alone(found["whole"])
    assert kept(found["whole"]) == left(found["whole"])
    assert not stands_alone(found["half"])
    assert kept(found["half"]) == half
    assert len(left(found["half"]).heads) < len(half.heads)
