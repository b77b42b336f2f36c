"""What tests of the torch surgeon run on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rebinding.surgery import TorchSurgeon
from tests.surgery.models import FAMILIES, tokens
from tests.surgery.small_edits import RECORDED_SITES, make_surgeon


@pytest.fixture(scope="module", params=FAMILIES)
def case(request: pytest.FixtureRequest) -> tuple[TorchSurgeon, torch.Tensor, Any]:
    """A surgeon, prompts, and a recording with everything kept."""
    surgeon, prompts = make_surgeon(request.param), tokens(request.param)
    return surgeon, prompts, surgeon.record(prompts, keep=RECORDED_SITES)
