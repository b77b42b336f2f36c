"""Set claims: overlap against chance and against ourselves."""

import numpy as np
import pytest
from scipy import stats

from rebinding.verdicts import emptiness, overlap
from tests.verdicts.simulation import at_most

HEADS = [(layer, head) for layer in range(10) for head in range(10)]
GROUP = HEADS[20:30]


def test_the_same_set_is_found_and_a_foreign_one_is_not():
    stable = [GROUP] * 19
    found = overlap(GROUP, GROUP, universe=100, selections=stable)
    assert (found.outcome, found.measured) == ("REPLICATED", 1.0)
    foreign = overlap(GROUP, HEADS[50:60], universe=100, selections=stable)
    assert (foreign.outcome, foreign.measured) == ("NOT REPLICATED", 0.0)


def test_chance_is_hypergeometric():
    """Four of ten and ten in a hundred: p = 0.0082 at an overlap of 4, 0.060 at 3."""
    for shared, outcome in ((4, "REPLICATED"), (2, "NOT REPLICATED")):
        published = GROUP[:shared] + HEADS[60 : 70 - shared]
        verdict = overlap(GROUP, published, universe=100, selections=[GROUP] * 19)
        assert verdict.outcome == outcome
        p = stats.hypergeom.sf(shared - 1, 100, 10, 10)
        assert f"chance p = {p:.2g}" in verdict.reason


def test_a_selection_that_does_not_find_itself_again_decides_nothing():
    rng = np.random.default_rng(40)
    unstable = [[HEADS[i] for i in rng.choice(100, 10, replace=False)] for _ in range(50)]
    verdict = overlap(GROUP, HEADS[50:60], universe=100, selections=unstable)
    assert (verdict.outcome, verdict.n) == ("INCONCLUSIVE", 50)
    assert verdict.low == 0.0


def test_too_few_repetitions_say_how_many_are_needed():
    verdict = overlap(GROUP, HEADS[50:60], universe=100, selections=[GROUP] * 18)
    assert (verdict.outcome, verdict.needed_n) == ("INCONCLUSIVE", 19)


def test_a_universe_too_small_to_be_surprising():
    verdict = overlap(HEADS[:3], HEADS[:3], universe=4, selections=[HEADS[:3]] * 19)
    assert verdict.outcome == "INCONCLUSIVE"
    assert "even full overlap would be chance" in verdict.reason


def test_blind_selection_is_seldom_a_replication_and_a_true_one_seldom_rejected():
    rng = np.random.default_rng(41)

    def blind():
        return [HEADS[i] for i in rng.choice(100, 10, replace=False)]

    def noisy():  # our procedure: five sure heads and five that change
        return HEADS[20:25] + [HEADS[i] for i in rng.choice(np.arange(30, 100), 5, replace=False)]

    runs = 1000
    lucky = sum(overlap(GROUP, blind(), universe=100, selections=[]).outcome == "REPLICATED" for _ in range(runs))
    assert lucky / runs <= at_most(0.05, runs)
    rejected = 0
    for _ in range(runs):
        again = [noisy() for _ in range(19)]
        rejected += overlap(noisy(), noisy(), universe=100, selections=again).outcome == "NOT REPLICATED"
    assert rejected / runs <= at_most(0.05, runs)


def test_empty_groups():
    assert emptiness([], empty=True, selections=[[]] * 3).outcome == "REPLICATED"
    assert emptiness(GROUP, empty=True, selections=[GROUP] * 3).outcome == "NOT REPLICATED"
    assert emptiness(GROUP, empty=False, selections=[GROUP] * 3).outcome == "REPLICATED"
    assert emptiness([], empty=False, selections=[[]] * 3).outcome == "NOT REPLICATED"
    assert emptiness([], empty=True, selections=[[], GROUP] * 5).outcome == "INCONCLUSIVE"
    assert emptiness([], empty=True, selections=[[]] * 2).needed_n == 3
    assert emptiness([], empty=True, selections=[]).outcome == "INCONCLUSIVE"


def test_misuse_is_explained():
    with pytest.raises(ValueError, match="use `emptiness`"):
        overlap([], GROUP, universe=100, selections=[])
    with pytest.raises(ValueError, match="in a universe of 9"):
        overlap(GROUP, GROUP, universe=9, selections=[])
