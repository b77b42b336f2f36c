"""Small groups by rank: exact against a naive enumeration, and never for and against at once."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebinding.verdicts import rank_overlap
from rebinding.verdicts.sets import rank_sums
from tests.verdicts.simulation import rate_is_at_most

LAYERS, WIDTH = 12, 16
HEADS = [(layer, head) for layer in range(LAYERS) for head in range(WIDTH)]


def falling(order):
    """Scores by which these heads stand in this order, the largest fall first."""
    return {head: float(place) for place, head in enumerate(order)}


def stated_chance(verdict):
    """The chance that a verdict tells, to two digits."""
    return float(verdict.reason.split("p = ")[1].split(")")[0])


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))))
def test_sums_of_ranks_are_counted_as_by_hand(sizes):
    n, k = sizes
    sums = [sum(ranks) for ranks in combinations(range(1, n + 1), k)]
    by_hand = np.bincount(sums, minlength=k * n + 1) / len(sums)
    assert np.allclose(rank_sums(n, k), by_hand, atol=1e-12)  # counts below 2^53 are exact, one quotient rounds


@given(st.permutations([(layer, head) for layer in range(2) for head in range(4)]), st.integers(1, 2), st.data())
def test_chance_is_the_share_of_draws_that_stand_as_high(order, k, data):
    """Among all senders, and within layers, where as many heads are drawn in each layer as were published there."""
    scores = {head: float(data.draw(st.integers(-3, 0))) for head in order}  # with ties
    published = order[:k]
    for null in ("universe", "layers"):
        same_layers = sorted(layer for layer, _ in published)
        draws = [
            draw
            for draw in combinations(sorted(order), k)
            if null == "universe" or sorted(layer for layer, _ in draw) == same_layers
        ]
        strict = sorted(scores, key=lambda head: (scores[head], head in published))  # ties count against the group

        def total(heads, null=null, strict=strict):
            pools = [[sender for sender in strict if null == "universe" or sender[0] == head[0]] for head in heads]
            return sum(pool.index(head) + 1 for pool, head in zip(pools, heads, strict=True))

        tied = [sum(score <= scores[head] for score in pool(scores, head, null)) for head in published]
        naive = np.mean([total(heads) <= sum(tied) for heads in draws])
        verdict = rank_overlap(order, published, scores=scores, repetitions=[], null=null)
        assert stated_chance(verdict) == pytest.approx(naive, rel=0.05)


def pool(scores, head, null):
    """The scores among which a head is ranked."""
    return [score for (layer, _), score in scores.items() if null == "universe" or layer == head[0]]


def test_a_kept_head_at_the_top_replicates_and_one_not_kept_does_not():
    selection, rest = HEADS[:10], HEADS[10:]
    for level in (0.05, 0.05 / 8):
        options = {"scores": falling(HEADS), "repetitions": [(selection, selection)] * 19, "level": level}
        assert rank_overlap(selection, [selection[0]], **options).outcome == "REPLICATED"
        assert rank_overlap(selection, selection[:2], **options).outcome == "REPLICATED"
    assert rank_overlap(selection, [rest[0]], **options | {"level": 0.05}).outcome == "NOT REPLICATED"
    half = rank_overlap(selection, [selection[0], rest[-1]], **options | {"level": 0.05})
    assert half.outcome == "INCONCLUSIVE", "one of two is kept, and the other is the last"


def test_a_head_among_many_that_do_nothing_has_the_last_rank():
    scores = dict.fromkeys(HEADS, 0.0)
    verdict = rank_overlap(HEADS[:10], HEADS[:1], scores=scores, repetitions=[(HEADS[:10], HEADS[:10])] * 19)
    assert verdict.outcome == "INCONCLUSIVE"
    assert stated_chance(verdict) == 1.0


def test_head_of_a_small_layer_ranks_high_by_chance():
    """The first of sixteen: 6 %. Two firsts of two layers: 0.4 %."""
    scores, repetitions = falling(HEADS), [(HEADS[:1], HEADS[:1])] * 19
    verdict = rank_overlap(HEADS[:1], HEADS[:1], scores=scores, repetitions=repetitions, null="layers")
    assert (verdict.outcome, stated_chance(verdict)) == ("INCONCLUSIVE", 0.062)
    pair = [(0, 0), (1, 0)]
    assert (
        rank_overlap(pair, pair, scores=scores, repetitions=[(pair, pair)] * 19, null="layers").outcome == "REPLICATED"
    )


@pytest.mark.parametrize("null", ["universe", "layers"])
@pytest.mark.parametrize("k", [1, 2])
def test_blind_scores_seldom_replicate(k, null):
    rng, runs, lucky = np.random.default_rng(44), 500, 0
    published = [(3, 5), (8, 1)][:k]
    for _ in range(runs):
        order = [HEADS[i] for i in rng.permutation(len(HEADS))]
        verdict = rank_overlap(HEADS, published, scores=falling(order), repetitions=[], null=null)
        lucky += verdict.outcome == "REPLICATED"
    assert lucky / runs <= rate_is_at_most(0.05, runs)


def test_no_evidence_is_for_and_against():
    """At one level or at two: a sentence under several conventions is judged at both."""
    rng = np.random.default_rng(45)
    for _ in range(200):
        order = [HEADS[i] for i in rng.permutation(len(HEADS))]
        selection, published = order[:10], [order[rng.integers(12)]]
        options = {"scores": falling(order), "repetitions": [(selection, selection)] * 19}
        verdict = {rank_overlap(selection, published, level=level, **options).outcome for level in (0.05, 0.05 / 6)}
        assert not {"REPLICATED", "NOT REPLICATED"} <= verdict


@pytest.mark.parametrize(
    ("selected", "published", "message"),
    [
        ([], HEADS[:1], "our selection is empty"),
        (HEADS[:1], [], "the published selection is empty"),
        (HEADS[:1], [(99, 0)], r"head \(99, 0\) has no score"),
    ],
)
def test_unrankable_input_is_refused(selected, published, message):
    with pytest.raises(ValueError, match=message):
        rank_overlap(selected, published, scores=falling(HEADS), repetitions=[])
