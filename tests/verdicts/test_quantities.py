"""Quantities beside a verdict: the rules' own interval, and one way to write a number."""

from __future__ import annotations

import numpy as np
import pytest

from rebinding.verdicts import effect
from rebinding.verdicts.outcome import Quantity, Verdict, invalid
from rebinding.verdicts.quantities import (
    format_mean,
    format_number,
    format_p_value,
    format_quantity,
    interval_of,
    with_quantities,
)

RANDOM = np.random.default_rng(0)
VERDICT = Verdict("effect", "REPLICATED", "as it is")


@pytest.mark.parametrize("shape", [(40,), (6, 40)], ids=["prompts", "draws crossed with prompts"])
def test_the_interval_is_that_of_a_rule_on_the_same_numbers(shape: tuple[int, ...]) -> None:
    values = RANDOM.normal(2.0, 1.0, shape)
    rule = effect(values, margin=0.1, unit="prompts" if len(shape) == 1 else "nested")
    (quantity,) = with_quantities(VERDICT, "dR", {"shift": values}).quantities
    assert (quantity.mean, quantity.low, quantity.high) == pytest.approx((rule.measured, rule.low, rule.high), rel=1e-5)
    assert quantity.n == 40


@pytest.mark.parametrize("values", [np.ones(30, bool), RANDOM.random((4, 30)) < 0.97, np.full(30, 0.98)])
def test_the_interval_of_a_share_stays_between_0_and_1(values: np.ndarray) -> None:
    _, low, high = interval_of(values, share=True)
    assert 0 <= low < high <= 1


def test_draws_that_share_their_prompts_are_not_independent() -> None:
    """Six copies of the same forty numbers say no more than one."""
    values = RANDOM.normal(0.0, 1.0, 40)
    single, copies = interval_of(values), interval_of(np.tile(values, (6, 1)))
    assert copies[2] - copies[1] >= 0.99 * (single[2] - single[1])


def test_a_failed_gate_and_numbers_that_are_not_finite_have_no_quantities() -> None:
    assert with_quantities(invalid("effect", "finite", "x"), "dR", {"shift": np.ones(8)}).quantities == ()
    assert with_quantities(VERDICT, "dR", {"shift": np.array([1.0, np.nan])}).quantities == ()


def test_numbers_are_written_in_one_way() -> None:
    quantity = Quantity("circuit", "accuracy", 0.9512345, 0.9, 0.98, 60)
    assert format_quantity(quantity) == "circuit 0.951 of prompts [0.9, 0.98]"
    assert format_quantity(Quantity("C", "dlogit", -5.3e-9, -1e-8, 1e-8, 60)) == "C 0 logits [0, 0]"
    assert format_mean(Quantity("C", "dlogit", -5.3e-9, None, None, 60)) == "C 0"
    assert format_quantity(Quantity("both", "dR", -0.009, -0.01, -0.008, 60)) == "both −0.009 dR [−0.01, −0.008]"
    assert format_number(-8.55) == "−8.55"


def test_a_tiny_p_value_is_a_bound() -> None:
    assert format_p_value(1e-115) == "p < 0.0001"
    assert format_p_value(0.0131) == "p = 0.013"
