"""Every claim on the full shapes of the paper's models, on tensors without numbers.

A head count, window, mask or norm that does not fit 48 layers fails here, and not when the weights have been paid for.
"""

from __future__ import annotations

import pytest

from claims.catalogue import catalogue
from fixtures.cost import CostedModel
from rebinding.cost.evidence import PassingGates
from rebinding.cost.source import CostEngine
from rebinding.cost.table import Accelerator
from rebinding.models import ALIASES
from rebinding.study.gates import EvidenceLog
from rebinding.study.model_spec import parse_model
from rebinding.study.model_under_test import ModelUnderTest
from rebinding.study.settings import Settings
from rebinding.study.study import Study
from tests.cost.test_rows import SEARCHING

KEPT = 8e9
"""The most bytes that a run may keep for later requests: a tenth of the device."""


@pytest.mark.slow
@pytest.mark.parametrize("alias", ALIASES)
def test_every_request_fits_the_shape(alias: str) -> None:
    """Evidence has the requested units, its numbers are finite, and edits change something: else a gate would stop a
    claim."""
    model, engine = parse_model(alias), CostEngine(Accelerator(int(80e9), 4e14, 3e12))
    case, log = ModelUnderTest(model, Settings((model,), engine=engine)), EvidenceLog()
    costed = CostedModel(model, engine, case, Study.of(case, log, PassingGates))
    costs = [costed.cost(row.claim, row.test) for row in catalogue()]
    assert [(cost["row"], cost["stopped"]) for cost in costs if cost["stopped"]] == []
    assert {cost["not costed"] for cost in costs} == {None, *SEARCHING.values()}
    assert len(costed.source.lines) > 100
    assert costed.source.missing_bytes < KEPT, "batches are cut from what is left"
