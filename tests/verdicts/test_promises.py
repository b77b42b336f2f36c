"""Properties that earlier rules violated: a sentence against its parts, a single boundary, p-values, shared prompts."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from rebinding.paper.numbers import printed_number
from rebinding.verdicts import effect, effect_nowhere, effect_somewhere, family, value
from rebinding.verdicts.effects import effect_outcomes
from rebinding.verdicts.estimates import estimate
from rebinding.verdicts.sentences import Part, all_of
from rebinding.verdicts.values import PrintedReference, value_outcomes
from tests.verdicts.simulation import rate_is_at_most, share

RUNS = 1500


def spread_like(n: int, spread: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """`n` numbers of mean 0 and exactly this standard deviation."""
    values = np.linspace(-1, 1, n)
    return values * spread / values.std(ddof=1)


def test_a_sentence_holds_if_all_its_parts_do() -> None:
    """A gap of 0.18 against a margin of 0.30, with spread 0.735 on 300 prompts: sure alone, and sure together."""
    paper = printed_number("plant", "2.00", kind="dR", source="plant", n=300)
    measurement = 2.18 + spread_like(300, 0.735)
    parts: dict[str, Part] = {str(number): partial(value, measurement, paper, margin=0.30) for number in range(4)}
    assert [part(level=0.05).outcome for part in parts.values()] == ["REPLICATED"] * 4
    assert all_of("value", parts).outcome == "REPLICATED"


def test_a_difference_that_does_not_count_is_never_a_refutation() -> None:
    """Three quarters of a margin away: a thousand prompts must not say that a smaller gap than counts is too large."""
    for n in (30, 300, 1000, 3000):
        measurement = estimate(np.random.default_rng(n).normal(0.75, 2.0, (RUNS, n)), unit="prompts")
        papers = np.random.default_rng(n + 1).normal(0, 2.0 / np.sqrt(n), RUNS).round(2)
        outcomes = value_outcomes(measurement, PrintedReference(papers, 0.005, n, 1, False), 1.0)
        assert share(outcomes, "NOT REPLICATED") <= rate_is_at_most(0.05, RUNS)
    assert share(outcomes, "REPLICATED") >= 0.9


def test_an_effect_that_does_not_count_is_no_replication() -> None:
    """Four tenths of a margin are positive, and surely so with a thousand prompts; they are not what is claimed."""
    for n in (10, 100, 1000):
        measurement = estimate(np.random.default_rng(n).normal(0.4, 2.0, (RUNS, n)), unit="prompts")
        assert share(effect_outcomes(measurement, 1.0), "REPLICATED") <= rate_is_at_most(0.05, RUNS)


def test_the_p_value_of_nowhere_is_that_of_the_test_that_rejects_it() -> None:
    """One loud place among quiet ones refutes it, and Holm lets that stand; where all are quiet nothing is rejected."""
    quiet = np.tile(spread_like(200, 0.2), (30, 1))
    loud = quiet.copy()
    loud[7] += 1.0
    options: dict[str, Any] = {"margin": 0.1, "support": (-1.0, 2.0)}
    refuted, holding = (
        effect_nowhere(loud, **options),
        effect_nowhere(quiet, **options),
    )
    assert (refuted.outcome, holding.outcome) == ("NOT REPLICATED", "REPLICATED")
    assert refuted.p_value is not None
    assert refuted.p_value < 1e-6
    assert holding.p_value is not None
    assert holding.p_value > 0.5
    assert family({"refuted": refuted, "kept": holding}).surviving == ("refuted",)
    loud_verdict, quiet_verdict = (
        effect_somewhere(loud, **options),
        effect_somewhere(quiet, **options),
    )
    assert loud_verdict.p_value is not None
    assert loud_verdict.p_value > 0.5
    assert quiet_verdict.p_value is not None
    assert quiet_verdict.p_value < 1e-6


def test_the_p_value_of_a_sentence_counts_its_parts() -> None:
    """Each of twenty parts is another chance to be refuted by luck."""
    rise: Part = partial(effect, np.ones(30), margin=0.1)
    weak: Part = partial(effect, spread_like(60, 1.0) - 0.6, margin=0.1)
    single = weak(level=0.05).p_value
    joint = all_of("effect", {"barely": weak} | {str(number): rise for number in range(19)}).p_value
    assert single is not None
    assert joint is not None
    assert joint == pytest.approx(20 * single, rel=1e-6)  # both read off Student's t, one off the bound at 5 % / 20


SHARED = {"normal": 0.05, "skewed": 0.13}
"""How often five draws of what prompts share err."""


@pytest.mark.parametrize("data", SHARED)
@pytest.mark.parametrize("prompts", [12, 60])
@pytest.mark.parametrize(
    "spreads", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1), (0.3, 0, 1), (0.15, 0.3, 1), (0.2, 1, 0.2), (1, 0.2, 0.2)]
)
def test_draws_that_prompts_share_are_random(data: str, prompts: int, spreads: tuple[float, ...]) -> None:
    """Five directions, draws, means or words, crossed with prompts: `spreads` are theirs, the prompts', the rest's."""
    rng = np.random.default_rng([prompts, *(int(100 * spread) for spread in spreads)])
    draw = rng.standard_normal if data == "normal" else lambda shape: rng.standard_exponential(shape) - 1
    shapes = ((RUNS, 5, 1), (RUNS, 1, prompts), (RUNS, 5, prompts))
    table = sum((spread * draw(shape) for spread, shape in zip(spreads, shapes, strict=True)), np.zeros(shapes[2]))
    outcomes = effect_outcomes(estimate(table, unit="nested"), 0.0)
    for outcome in ("REPLICATED", "NOT REPLICATED"):
        assert share(outcomes, outcome) <= rate_is_at_most(SHARED[data], RUNS)
    if data == "normal" and spreads[0] >= 0.3:  # as if the draws were known: one number a prompt
        without_draws = effect_outcomes(estimate(table.mean(axis=1), unit="prompts"), 0.0)
        assert share(without_draws, "REPLICATED") > rate_is_at_most(0.05, RUNS)


def test_five_draws_with_a_long_tail_are_corrected_for_it() -> None:
    """Exponential draws that hardly depend on the prompt: Student's t alone errs in 16 %."""
    runs = 20_000
    rng = np.random.default_rng(5)
    table = rng.standard_exponential((runs, 5, 1)) - 1 + 0.01 * rng.standard_normal((runs, 5, 5))
    outcomes = effect_outcomes(estimate(table, unit="nested"), 0.0)
    assert share(outcomes, "NOT REPLICATED") <= rate_is_at_most(SHARED["skewed"], runs)
