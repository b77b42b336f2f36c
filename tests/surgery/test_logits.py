"""The logits of a few tokens are those of the whole vocabulary, however the head is made."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from rebinding.surgery import derive
from tests.close import MIN_CHANGE_SHARE, allowance
from tests.surgery.models import FAMILIES, Family, tiny


class Wrapped(nn.Linear):
    """A head that is no plain matrix: its numbers come of a call and of nothing else."""

    def forward(self, entry: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(entry)


@pytest.mark.parametrize("kind", ["plain", "with a bias", "wrapped"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_few_tokens(family: Family, kind: str) -> None:
    model, dice = tiny(family), torch.Generator().manual_seed(0)
    anatomy = derive(model)
    head: Any = model.get_submodule(anatomy.head)
    if kind == "wrapped":
        head.__class__ = Wrapped
    if kind == "with a bias":
        head.bias = nn.Parameter(torch.randn(head.out_features, generator=dice), requires_grad=False)
    resid = torch.randn(4, 2, head.in_features, generator=dice)  # (row, position, hidden)
    tokens = torch.randint(0, head.out_features, (4, 3), generator=dice)  # (row, token)
    with torch.no_grad():
        full = anatomy.logits(model, resid)  # (row, position, vocabulary)
        small = anatomy.logits(model, resid, tokens)  # (row, position, token)
    expected = torch.stack([full[row][:, tokens[row]] for row in range(4)])
    close = allowance(expected, floor=1.0)
    assert float((small - expected).abs().max()) <= close
    assert float((expected[..., 0] - expected[..., 1]).abs().max()) > MIN_CHANGE_SHARE * close
