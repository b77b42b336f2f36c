"""Differences in allowances, worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from rebinding.models.certificate import FLOOR, Deviation
from rebinding.models.probe import Allowance
from rebinding.paper.certificate import LARGEST

ALLOWANCE = Allowance(depth=2, width=16)
BELOW = torch.finfo(torch.float32).min


def test_a_residual_is_compared_token_by_token_with_every_dimension_at_its_size() -> None:
    """Sizes are 1000 and 1; the second token differs by 0.01 in the small dimension, where both tokens have 1."""
    resid = torch.tensor([[[1000.0, 1.0], [1000.0, 1.0]]])
    deviation = Deviation.of_resid(ALLOWANCE, resid)
    actual = resid[0] + torch.tensor([[0.0, 0.0], [0.0, 0.01]])
    token, off = deviation.resids(actual, resid[0])
    assert token == 1
    assert off == pytest.approx(math.sqrt(0.01**2 / 2) / ALLOWANCE.relative, rel=1e-3)
    assert deviation.resids(resid[0], resid[0]) == (0, 0.0)


def test_a_dimension_near_zero_counts_as_a_share_of_the_whole() -> None:
    resid = torch.tensor([[[2.0, 0.0]]])
    assert torch.allclose(Deviation.of_resid(ALLOWANCE, resid).scale, torch.tensor([2.0, FLOOR * math.sqrt(2.0)]))


def test_infinite_and_missing_numbers_are_the_largest_deviation() -> None:
    deviation = Deviation(ALLOWANCE, torch.ones(1))
    for wrong in (math.nan, math.inf, 1e30):
        assert deviation.values(torch.tensor([[1.0], [wrong]]), torch.ones(2, 1)) == (1, LARGEST)
    assert deviation.values(torch.ones(1, 1), torch.zeros(1, 1)) == (0, LARGEST)  # nothing is allowed at zero
    assert deviation.values(torch.zeros(1, 1), torch.zeros(1, 1)) == (0, 0.0)


@pytest.mark.parametrize(
    ("row", "off"),
    [
        ([1.0, BELOW], 0.0),
        ([1.0, -math.inf], 0.0),
        ([1.0, 0.0], LARGEST),  # not masked
        ([BELOW, BELOW], LARGEST),  # masked where the other is not
        ([1.0 + ALLOWANCE.relative, BELOW], 1.0),
    ],
)
def test_masked_scores_have_to_be_masked_in_both(row: list[float], off: float) -> None:
    """One query, two keys, the second masked; the visible score is 1."""
    deviation = Deviation(ALLOWANCE, torch.ones(1))
    actual, expected = torch.tensor([[row]]), torch.tensor([[[1.0, BELOW]]])
    assert deviation.scores(actual, expected)[1] == pytest.approx(off, rel=2e-2)
