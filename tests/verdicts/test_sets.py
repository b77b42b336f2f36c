"""Set claims: overlap against chance and against ourselves; small groups by rank, exact against a naive enumeration."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rebinding.verdicts import Verdict, absence, emptiness, overlap, rank_overlap
from rebinding.verdicts.sets import rank_sums

R, N, OPEN = "REPLICATED", "NOT REPLICATED", "INCONCLUSIVE"
HEADS = [(layer, head) for layer in range(10) for head in range(10)]
GROUP, FOREIGN = HEADS[20:30], HEADS[50:60]
LAYERS = {"universe": 100, "null": "layers", "layers": 10}
Heads = list[tuple[int, int]]


def stable(selection: Heads, times: int = 19) -> list[tuple[Heads, Heads]]:
    """Repetitions that always select the same heads."""
    return [(selection, selection)] * times


def chance_in_reason(verdict: Verdict) -> float:
    """The chance that a verdict tells, to two digits."""
    return float(verdict.reason.split("p = ")[1].split(")")[0])


def choose(rng: np.random.Generator, heads: Sequence[tuple[int, int]], count: int) -> Heads:
    return [heads[i] for i in rng.choice(len(heads), count, replace=False)]


@pytest.mark.parametrize(
    ("selected", "published", "repetitions", "null", "outcome"),
    [
        (GROUP, GROUP, stable(GROUP), {"universe": 100}, R),
        (GROUP, FOREIGN, stable(GROUP), {"universe": 100}, N),
        (GROUP, FOREIGN, stable(GROUP, 18), {"universe": 100}, OPEN),
        (HEADS[:3], HEADS[:3], stable(HEADS[:3]), {"universe": 4}, OPEN),
        # a whole layer: within it there was nothing to choose
        (GROUP, GROUP, stable(GROUP), LAYERS, OPEN),
        ([(2, 1), (2, 5), (3, 4)], [(2, 1), (2, 5), (3, 4)], stable([(2, 1), (2, 5), (3, 4)]), LAYERS, R),
        ([(2, 1), (2, 5), (3, 4)], [(2, 2), (2, 6), (3, 5)], stable([(2, 1), (2, 5), (3, 4)]), LAYERS, N),
        # heads in other layers: no overlap is possible there, which is no want of power
        ([(1, 0), (2, 0)], [(5, 6), (5, 7)], stable([(1, 0), (2, 0)]), LAYERS, N),
        ([(4, 1), (5, 2)], [(4, 3), (6, 0)], stable([(4, 1), (5, 2)]), LAYERS, N),
        ([(4, 3), (6, 0)], [(4, 3), (6, 0)], stable([(4, 3), (6, 0)]), LAYERS, R),
        # of a single head it is: one of eight is drawn blindly in 12.5 %
        ([(1, 0)], [(5, 6)], stable([(1, 0)]), {"universe": 56, "null": "layers", "layers": 7}, OPEN),
    ],
)
def test_overlap_of_stable_selections(
    selected: Heads, published: Heads, repetitions: list[Any], null: dict[str, Any], outcome: str
) -> None:
    verdict = overlap(selected, published, repetitions=repetitions, **null)
    assert verdict.outcome == outcome
    assert verdict.measured == len({*selected} & {*published}) / len(selected)
    assert verdict.needed_n == (19 if len(repetitions) < 19 else None)
    assert ("even full overlap would be chance" in verdict.reason) == (outcome == OPEN and len(repetitions) == 19)


def test_chance_is_hypergeometric() -> None:
    """Four of ten and ten in a hundred: p = 0.0082 at an overlap of 4, 0.060 at 3."""
    for shared, outcome in ((4, R), (2, N)):
        published = GROUP[:shared] + HEADS[60 : 70 - shared]
        verdict = overlap(GROUP, published, universe=100, repetitions=stable(GROUP))
        assert verdict.outcome == outcome
        p = stats.hypergeom.sf(shared - 1, 100, 10, 10)
        assert f"chance p = {p:.2g}" in verdict.reason


def test_an_unstable_selection_decides_nothing() -> None:
    rng = np.random.default_rng(40)
    unstable = [(choose(rng, HEADS, 10), choose(rng, HEADS, 10)) for _ in range(50)]
    verdict = overlap(GROUP, FOREIGN, universe=100, repetitions=unstable)
    assert (verdict.outcome, verdict.n, verdict.low) == (OPEN, 50, 0.0)
    result = overlap(GROUP, FOREIGN, universe=100, repetitions=unstable[:19])
    assert (result.outcome, result.needed_n) == (OPEN, None)  # more of the same would not help


def test_an_empty_repetition_shares_nothing() -> None:
    result = overlap("ab", "ab", universe=40, repetitions=[("ab", "ab"), ("ab", "")])
    assert (result.low, result.high) == (0.0, 1.0)


def test_the_null_of_layers_is_that_of_drawing() -> None:
    """Against as many drawn selections."""
    rng, runs = np.random.default_rng(43), 5000
    selected, published = [(0, 0), (0, 1), (1, 3), (2, 7)], [(0, 0), (1, 3), (1, 4), (2, 1)]
    chance = chance_in_reason(overlap(selected, published, universe=24, repetitions=[], null="layers", layers=3))
    hits = sum(
        np.isin(rng.permuted(np.tile(np.arange(8), (runs, 1)), axis=1)[:, :count], marked).sum(1)
        for count, marked in ((2, [0]), (1, [3, 4]), (1, [1]))
    )
    assert abs((hits >= 2).mean() - chance) < 5 * np.sqrt(chance / runs) + 0.005 * chance  # printed to two digits


@pytest.mark.parametrize(
    ("selection", "empty", "selections", "outcome", "needed"),
    [
        ([], True, [[]] * 3, R, None),
        (GROUP, True, [GROUP] * 3, N, None),
        ([], True, [[], GROUP] * 5, OPEN, None),
        ([], True, [[]] * 2, OPEN, 3),
        ([], True, [], OPEN, 3),
        ([], True, [[], [], GROUP], OPEN, None),
    ],
)
def test_an_empty_group_stays_empty_on_most_prompts(
    selection: Heads, empty: bool, selections: list[Heads], outcome: str, needed: int | None
) -> None:
    """That "not empty" is its mirror is a property of the rule (`test_rule_properties.py`)."""
    verdict = emptiness(selection, empty=empty, selections=selections)
    assert (verdict.outcome, verdict.needed_n) == (outcome, needed)


def test_an_empty_group_is_absent_if_hardly_any_resample_has_heads() -> None:
    """One in twenty: none of 19 (p = 1 / 20), one of 39, not one of 20."""
    for with_heads, empty, outcome in ((0, 19, N), (1, 38, N), (1, 19, OPEN), (0, 18, OPEN)):
        verdict = absence([GROUP] * with_heads + [[]] * empty)
        assert (verdict.outcome, verdict.p_value) == (outcome, (1 + with_heads) / (1 + with_heads + empty))
    assert absence([[]] * 20, level=0.01).outcome == OPEN


@pytest.mark.parametrize(
    ("selected", "published", "options", "message"),
    [
        ([], GROUP, {"universe": 100}, "^our selection is empty.*use `emptiness`"),
        (GROUP, [], {"universe": 100}, "^the published selection is empty.*use `emptiness`"),
        (GROUP, GROUP, LAYERS | {"layers": 20}, "do not contain all heads"),
        ([(0, 1)], [(12, 1)], LAYERS, "do not contain all heads"),
        ([1], [2], LAYERS, r"give heads as \(layer, head\)"),
        (GROUP, GROUP, {"universe": 9}, "in a universe of 9"),
    ],
)
def test_impossible_selections_are_refused(
    selected: list[Any], published: list[Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        overlap(selected, published, repetitions=[], **options)


# Small groups by rank

SENDERS = [(layer, head) for layer in range(12) for head in range(16)]
KEPT, REST = SENDERS[:10], SENDERS[10:]


def falling(order: Heads) -> dict[tuple[int, int], float]:
    """Scores by which these heads stand in this order, the largest fall first."""
    return {head: float(place) for place, head in enumerate(order)}


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))))
def test_sums_of_ranks_are_counted_as_by_hand(sizes: tuple[int, int]) -> None:
    n, k = sizes
    sums = [sum(ranks) for ranks in combinations(range(1, n + 1), k)]
    by_hand = np.bincount(sums, minlength=k * n + 1) / len(sums)
    assert np.allclose(rank_sums(n, k), by_hand, atol=1e-12)  # counts below 2^53 are exact, one quotient rounds


@pytest.mark.parametrize("null", ["universe", "layers"])
@given(
    order=st.permutations([(layer, head) for layer in range(2) for head in range(4)]),
    k=st.integers(1, 2),
    values=st.lists(st.integers(-3, 0), min_size=8, max_size=8),  # with ties
)
def test_chance_is_the_share_of_draws_that_stand_as_high(null: Any, order: Heads, k: int, values: list[int]) -> None:
    """Among all senders, and within layers, where as many heads are drawn in each layer as were published there."""
    scores, published = dict(zip(order, map(float, values), strict=True)), order[:k]

    def layers(heads: Sequence[tuple[int, int]]) -> list[int]:
        return sorted(layer for layer, _ in heads if null == "layers")

    def pool(head: tuple[int, int]) -> Heads:
        """The senders among which a head is ranked; ties count against the published group."""
        senders = [sender for sender in order if null == "universe" or sender[0] == head[0]]
        return sorted(senders, key=lambda sender: (scores[sender], sender in published))

    draws = [draw for draw in combinations(sorted(order), k) if layers(draw) == layers(published)]
    total = sum(scores[sender] <= scores[head] for head in published for sender in pool(head))
    naive = np.mean([sum(pool(head).index(head) + 1 for head in draw) <= total for draw in draws])
    verdict = rank_overlap(order, published, scores=scores, repetitions=[], null=null)
    assert chance_in_reason(verdict) == pytest.approx(naive, rel=0.05)


@pytest.mark.parametrize("level", [0.05, 0.05 / 8])
def test_a_kept_head_at_the_top_replicates_and_one_not_kept_does_not(level: float) -> None:
    options: dict[str, Any] = {"scores": falling(SENDERS), "repetitions": stable(KEPT), "level": level}
    assert rank_overlap(KEPT, KEPT[:1], **options).outcome == R
    assert rank_overlap(KEPT, KEPT[:2], **options).outcome == R
    assert rank_overlap(KEPT, REST[:1], **options).outcome == (N if level == 0.05 else OPEN)
    half = rank_overlap(KEPT, [KEPT[0], REST[-1]], **options)
    assert half.outcome == OPEN, "one of two is kept, and the other is the last"


def test_a_head_among_many_that_do_nothing_has_the_last_rank() -> None:
    verdict = rank_overlap(KEPT, KEPT[:1], scores=dict.fromkeys(SENDERS, 0.0), repetitions=stable(KEPT))
    assert (verdict.outcome, chance_in_reason(verdict)) == (OPEN, 1.0)


def test_a_head_of_a_small_layer_ranks_high_by_chance() -> None:
    """The first of sixteen: 6 %. Two firsts of two layers: 0.4 %."""
    for heads, outcome, chance in (([(0, 0)], OPEN, 0.062), ([(0, 0), (1, 0)], R, 0.0039)):
        verdict = rank_overlap(heads, heads, scores=falling(SENDERS), repetitions=stable(heads), null="layers")
        assert (verdict.outcome, chance_in_reason(verdict)) == (outcome, chance)


def test_no_evidence_is_for_and_against() -> None:
    """At one level or at two: a sentence under several conventions is judged at both."""
    rng = np.random.default_rng(45)
    for _ in range(200):
        order = choose(rng, SENDERS, len(SENDERS))
        selection, published = order[:10], [order[rng.integers(12)]]
        options: dict[str, Any] = {"scores": falling(order), "repetitions": stable(selection)}
        verdicts = {rank_overlap(selection, published, level=level, **options).outcome for level in (0.05, 0.05 / 6)}
        assert not {R, N} <= verdicts


def test_unrankable_heads_are_refused() -> None:
    for selected, published, message in (
        ([], KEPT[:1], "our selection is empty"),
        (KEPT[:1], [], "the published selection is empty"),
        (KEPT[:1], [(99, 0)], r"head \(99, 0\) has no score"),
    ):
        with pytest.raises(ValueError, match=message):
            rank_overlap(selected, published, scores=falling(SENDERS), repetitions=[])
