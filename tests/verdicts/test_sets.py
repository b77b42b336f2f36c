"""Set claims: overlap against chance and against ourselves."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from rebinding.verdicts import absence, emptiness, overlap
from tests.verdicts.simulation import rate_is_at_most

HEADS = [(layer, head) for layer in range(10) for head in range(10)]
GROUP = HEADS[20:30]


def test_the_same_set_is_found_and_a_foreign_one_is_not():
    stable = [(GROUP, GROUP)] * 19
    verdict = overlap(GROUP, GROUP, universe=100, repetitions=stable)
    assert (verdict.outcome, verdict.measured) == ("REPLICATED", 1.0)
    foreign = overlap(GROUP, HEADS[50:60], universe=100, repetitions=stable)
    assert (foreign.outcome, foreign.measured) == ("NOT REPLICATED", 0.0)


def test_chance_is_hypergeometric():
    """Four of ten and ten in a hundred: p = 0.0082 at an overlap of 4, 0.060 at 3."""
    for shared, outcome in ((4, "REPLICATED"), (2, "NOT REPLICATED")):
        published = GROUP[:shared] + HEADS[60 : 70 - shared]
        verdict = overlap(GROUP, published, universe=100, repetitions=[(GROUP, GROUP)] * 19)
        assert verdict.outcome == outcome
        p = stats.hypergeom.sf(shared - 1, 100, 10, 10)
        assert f"chance p = {p:.2g}" in verdict.reason


def test_an_unstable_selection_decides_nothing():
    rng = np.random.default_rng(40)
    unstable = [[[HEADS[i] for i in rng.choice(100, 10, replace=False)] for _ in range(2)] for _ in range(50)]
    verdict = overlap(GROUP, HEADS[50:60], universe=100, repetitions=unstable)
    assert (verdict.outcome, verdict.n) == ("INCONCLUSIVE", 50)
    assert verdict.low == 0.0
    result = overlap(GROUP, HEADS[50:60], universe=100, repetitions=unstable[:19])
    assert (result.outcome, result.needed_n) == ("INCONCLUSIVE", None)  # more of the same would not help


def test_too_few_repetitions_say_how_many_are_needed():
    verdict = overlap(GROUP, HEADS[50:60], universe=100, repetitions=[(GROUP, GROUP)] * 18)
    assert (verdict.outcome, verdict.needed_n) == ("INCONCLUSIVE", 19)


def test_a_universe_too_small_to_be_surprising():
    verdict = overlap(HEADS[:3], HEADS[:3], universe=4, repetitions=[(HEADS[:3], HEADS[:3])] * 19)
    assert verdict.outcome == "INCONCLUSIVE"
    assert "even full overlap would be chance" in verdict.reason


def test_blind_selection_is_seldom_a_replication_and_a_true_one_seldom_rejected():
    rng = np.random.default_rng(41)

    def blind():
        return [HEADS[i] for i in rng.choice(100, 10, replace=False)]

    def noisy():  # our procedure: five sure heads and five that change
        return HEADS[20:25] + [HEADS[i] for i in rng.choice(np.arange(30, 100), 5, replace=False)]

    runs = 1000
    lucky = sum(overlap(GROUP, blind(), universe=100, repetitions=[]).outcome == "REPLICATED" for _ in range(runs))
    assert lucky / runs <= rate_is_at_most(0.05, runs)
    rejected = 0
    for _ in range(runs):
        second = [(noisy(), noisy()) for _ in range(19)]
        rejected += overlap(noisy(), noisy(), universe=100, repetitions=second).outcome == "NOT REPLICATED"
    assert rejected / runs <= rate_is_at_most(0.05, runs)


def overlap_near(published, rng, spread=2):
    """As many heads as published, drawn blindly from the layers of the published ones and two on either side."""
    layers = sorted({layer + step for layer, _ in published for step in range(-spread, spread + 1)})
    heads = [(layer, head) for layer in layers for head in range(16)]
    return [heads[i] for i in rng.choice(len(heads), len(published), replace=False)]


def test_knowing_the_layers_does_not_pass_the_null_of_layers():
    """Twenty published heads in four neighbouring layers of 26 with 16 heads: knowing where they lie is no finding."""
    rng, runs = np.random.default_rng(42), 500
    published = [(layer, head) for layer in (20, 21, 22, 23) for head in range(5)]
    draws = [overlap_near(published, rng) for _ in range(runs)]

    def passed(**null):
        verdicts = (overlap(draw, published, universe=26 * 16, repetitions=[], **null) for draw in draws)
        return sum(verdict.outcome == "REPLICATED" for verdict in verdicts) / runs

    assert passed(null="layers", layers=26) <= rate_is_at_most(0.05, runs)
    assert passed() > 0.25, "the null of all heads alike takes it for a finding"


def test_the_null_of_layers_is_that_of_drawing():
    """Against as many drawn selections."""
    rng, runs = np.random.default_rng(43), 5000
    selected, published = [(0, 0), (0, 1), (1, 3), (2, 7)], [(0, 0), (1, 3), (1, 4), (2, 1)]
    chance = float(
        overlap(selected, published, universe=24, repetitions=[], null="layers", layers=3)
        .reason.split("p = ")[1]
        .split(")")[0]
    )
    hits = sum(
        np.isin(rng.permuted(np.tile(np.arange(8), (runs, 1)), axis=1)[:, :count], marked).sum(1)
        for count, marked in ((2, [0]), (1, [3, 4]), (1, [1]))
    )
    assert abs((hits >= 2).mean() - chance) < 5 * np.sqrt(chance / runs) + 0.005 * chance  # printed to two digits


def test_our_own_heads_pass_the_null_of_layers():
    result = overlap(GROUP, GROUP, universe=100, repetitions=[(GROUP, GROUP)] * 19, null="layers", layers=10)
    assert result.outcome == "INCONCLUSIVE", "a whole layer: within it there was nothing to choose"
    selected = [(2, 1), (2, 5), (3, 4)]
    assert (
        overlap(
            selected, selected, universe=100, repetitions=[(selected, selected)] * 19, null="layers", layers=10
        ).outcome
        == "REPLICATED"
    )
    disjoint = [(2, 2), (2, 6), (3, 5)]
    assert (
        overlap(
            selected, disjoint, universe=100, repetitions=[(selected, selected)] * 19, null="layers", layers=10
        ).outcome
        == "NOT REPLICATED"
    )


def test_empty_groups():
    assert emptiness([], empty=True, selections=[[]] * 3).outcome == "REPLICATED"
    assert emptiness(GROUP, empty=True, selections=[GROUP] * 3).outcome == "NOT REPLICATED"
    assert emptiness(GROUP, empty=False, selections=[GROUP] * 3).outcome == "REPLICATED"
    assert emptiness([], empty=False, selections=[[]] * 3).outcome == "NOT REPLICATED"
    assert emptiness([], empty=True, selections=[[], GROUP] * 5).outcome == "INCONCLUSIVE"
    assert emptiness([], empty=True, selections=[[]] * 2).needed_n == 3
    assert emptiness([], empty=True, selections=[]).outcome == "INCONCLUSIVE"
    assert emptiness([], empty=True, selections=[[], [], GROUP]).needed_n is None


def test_an_empty_group_is_absent_if_hardly_any_resample_has_heads():
    """One in twenty: none of 19 (p = 1 / 20), one of 39, not one of 20."""
    for with_heads, empty, outcome in ((0, 19, "NOT REPLICATED"), (1, 38, "NOT REPLICATED"), (1, 19, "INCONCLUSIVE")):
        verdict = absence([GROUP] * with_heads + [[]] * empty)
        assert (verdict.outcome, verdict.p_value) == (outcome, (1 + with_heads) / (1 + with_heads + empty))
    assert absence([[]] * 18).outcome == "INCONCLUSIVE"
    assert absence([[]] * 20, level=0.01).outcome == "INCONCLUSIVE"


def test_misuse_is_explained():
    with pytest.raises(ValueError, match="use `emptiness`"):
        overlap([], GROUP, universe=100, repetitions=[])
    with pytest.raises(ValueError, match="do not contain all heads"):
        overlap(GROUP, GROUP, universe=100, repetitions=[], null="layers", layers=20)
    with pytest.raises(ValueError, match="do not contain all heads"):
        overlap([(0, 1)], [(12, 1)], universe=100, repetitions=[], null="layers", layers=10)
    with pytest.raises(ValueError, match=r"give heads as \(layer, head\)"):
        overlap([1], [2], universe=100, repetitions=[], null="layers", layers=10)
    with pytest.raises(ValueError, match="in a universe of 9"):
        overlap(GROUP, GROUP, universe=9, repetitions=[])


def test_heads_in_other_layers_are_other_heads() -> None:
    """Ours lie, again and again, in two other layers: no overlap is possible there, which is no want of power. Of a
    single head it is: one of eight is drawn blindly in 12.5 %."""
    options: dict[str, Any] = {"universe": 56, "null": "layers", "layers": 7}
    selected, published = [(4, 1), (5, 2)], [(4, 3), (6, 0)]
    assert (
        overlap(
            [(1, 0), (2, 0)], [(5, 6), (5, 7)], repetitions=[([(1, 0), (2, 0)], [(1, 0), (2, 0)])] * 20, **options
        ).outcome
        == "NOT REPLICATED"
    )
    assert overlap(selected, published, repetitions=[(selected, selected)] * 20, **options).outcome == "NOT REPLICATED"
    assert overlap([(1, 0)], [(5, 6)], repetitions=[([(1, 0)], [(1, 0)])] * 20, **options).outcome == "INCONCLUSIVE"
    assert overlap(published, published, repetitions=[(published, published)] * 20, **options).outcome == "REPLICATED"
