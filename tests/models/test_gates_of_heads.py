"""The self-check compares what leaves the gate with what its own head attends to."""

from __future__ import annotations

import pytest
import torch

from rebinding.models import errors, verify
from rebinding.models.probe import Allowance
from rebinding.surgery import TorchSurgeon, derive
from tests.families.models import RandomModel


@pytest.mark.parametrize(("shift", "factor", "is_right"), [(0, 1.0, True), (1, 1.0, False), (0, 3.0, False)])
def test_other_heads_and_large_gates_are_refused(shift: int, factor: float, is_right: bool) -> None:
    """z of the next head, or three times as large, is no gated output of its head."""
    model = RandomModel("qwen3_next").build()
    anatomy = derive(model)
    recording = TorchSurgeon(model, anatomy).record(torch.arange(3, 15)[None], keep={"z", "scores"})
    parts = next(part for part in anatomy.parts if part.has_gate)
    stages = {site: values[parts.number] for site, values in recording.sites.items() if site in ("scores", "values")}
    stages["z"] = factor * recording.sites["z"][parts.number].roll(shift, dims=1)
    allowance = Allowance.of_model(model, anatomy).one_layer
    if is_right:
        verify._check_gate(model, parts, stages, allowance)
        return
    with pytest.raises(errors.UnsupportedArchitecture, match="is not the output of its heads times a gate"):
        verify._check_gate(model, parts, stages, allowance)
