"""The counted cost: on a map small enough to count by hand, and what the count must obey on a large one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rebinding.surgery import derive
from tests.surgery.models import tiny
from tests.tracing.cost import operations, tracing_cost

ANATOMY = derive(tiny("llama"))
"""Hidden 24, 6 query heads and 2 KV heads of 10, vocabulary 101."""
INNER = 40


def test_operations_of_one_token_in_one_layer() -> None:
    projections, mlp, attention = 24 * (60 + 2 * 20) + 60 * 24, 3 * 24 * 40, 2 * 60 * 7
    assert operations(ANATOMY, INNER, 7) == projections + mlp + attention


def test_counted_by_hand() -> None:
    """Two layers, three tokens, the second differs: it runs in both layers, the third in the upper one.

    Patched at the second token, the upper layer computes its keys and values there and nothing else.
    """
    cost = tracing_cost(replace(ANATOMY, n_layers=2), inner=INNER, length=3, differing=(1,), prompts=5)
    one, logits = operations(ANATOMY, INNER, 3), 24 * 101
    assert (cost.cells, cost.cells_run) == (5 * 6, 5 * 3)
    whole = 6 * one + logits
    keys_and_values = 2 * 24 * 20
    assert cost.replayed == 5 * (2 * whole + (2 + 1 + 1 + 1) * one + 2 * keys_and_values + 3 * logits)
    assert cost.naive == 5 * 7 * whole


def test_a_later_edit_costs_less() -> None:
    ratios = [tracing_cost(ANATOMY, inner=INNER, length=100, differing=(token,)).ratio for token in (0, 10, 50, 90)]
    assert ratios == sorted(ratios)
    keys_and_values = 2 * 24 * 20 / operations(ANATOMY, INNER, 100)
    above = (2 + 1 + 0) + 3 * keys_and_values  # layer 0 does not run; the last one computes keys and values
    assert ratios[0] == pytest.approx(2 * 4 * 4 / above, rel=0.1)  # of half the tokens, in the mean
    assert ratios[2] > 8
