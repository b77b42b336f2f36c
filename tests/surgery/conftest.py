"""What tests of the torch surgeon run on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rebinding.surgery import TorchSurgeon
from tests.surgery.edited import KEPT, surgeon_of
from tests.surgery.models import FAMILIES, tokens


@pytest.fixture(scope="module", params=FAMILIES)
def case(request: pytest.FixtureRequest) -> tuple[TorchSurgeon, torch.Tensor, Any]:
    """A surgeon, prompts, and a recording with everything kept."""
    surgeon, prompts = surgeon_of(request.param), tokens(request.param)
    return surgeon, prompts, surgeon.record(prompts, keep=KEPT)
