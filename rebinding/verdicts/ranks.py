"""Small groups: the ranks of a few published heads among all senders of a stage.

A stage keeps ten heads or more. A random draw of ten of 672 heads contains a single published one in 1.5 %, whether
that head ranks first of the ten or last. So an overlap cannot tell a group of one or two heads from luck once several
conventions share the level. The stage's scores say more: the rank of each published head among all senders, the largest
drop first. If nothing ties the published heads to the stage they are k of n heads drawn at random, and the sum of their
ranks has an exact distribution (that of the rank-sum test; for one head, rank / n). Ties count against the group.

The nulls are those of `rebinding.verdicts.sets`: `universe`, ranks among all heads; `layers`, ranks within each
published head's own layer, because a group's layers alone say much about its rank among all heads.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, reduce

import numpy as np
import numpy.typing as npt

from rebinding.paper.circuit import Head
from rebinding.verdicts.outcome import Verdict
from rebinding.verdicts.sets import Null, Repetition, judge_selection


def rank_overlap(
    selection: Collection[Head],
    published: Collection[Head],
    *,
    scores: Mapping[Head, float],
    repetitions: Sequence[Repetition],
    null: Null = "universe",
    level: float = 0.05,
) -> Verdict:
    """Are the published heads among those that our stage keeps, and at its top beyond chance?

    REPLICATED if our selection has at least one of them and a random draw reaches their sum of ranks with probability
    at most `level`. NOT REPLICATED if our selection has none of them, and that would be rare (at most `level`) if they
    were one more of our own; see `overlap`. So no evidence can do both, at any levels.
    `scores` has every sender of the stage; the lowest score is the largest drop, and has rank 1.
    """
    selected, printed = frozenset(selection), frozenset(published)
    if not selected or not printed:
        empty = "our" if not selected else "the published"
        raise ValueError(f"{empty} selection is empty, so no head has a rank; use `emptiness` for empty groups")
    if unscored := (selected | printed) - scores.keys():
        raise ValueError(f"head {min(unscored)} has no score; give the scores of all senders of the stage")
    pools = _pools(printed, scores, null)
    ranks = [rank for pool, heads in pools for rank in ranks_in(pool, [scores[head] for head in heads])]
    null_pmf = reduce(np.convolve, [rank_sums(len(pool), len(heads)) for pool, heads in pools])
    shared = len(selected & printed)
    chance = float(null_pmf[: sum(ranks) + 1].sum()) if shared else 1.0
    best = float(null_pmf[np.flatnonzero(null_pmf)[0]])
    senders = f"{len(scores)} senders" if null == "universe" else "the senders of each layer"
    numbers = (
        f"the published heads have rank {', '.join(map(str, sorted(ranks)))} among {senders}, and our stage keeps"
        f" {shared} of these {len(printed)} among its {len(selected)} (chance p = {chance:.2g})"
    )
    verdict = judge_selection(selected, printed, chance, best, repetitions, numbers, level)
    return replace(verdict, outcome="INCONCLUSIVE") if shared and verdict.outcome == "NOT REPLICATED" else verdict


def _pools(
    heads: frozenset[Head], scores: Mapping[Head, float], null: Null
) -> list[tuple[npt.NDArray[np.float64], list[Head]]]:
    """Pools of scores, each with the heads to rank in it: all in one pool, or one pool per layer."""
    if null == "universe":
        return [(np.array(list(scores.values())), sorted(heads))]
    return [
        (
            np.array([score for head, score in scores.items() if head[0] == layer]),
            sorted(head for head in heads if head[0] == layer),
        )
        for layer in sorted({layer for layer, _ in heads})
    ]


def ranks_in(pool: npt.NDArray[np.float64], scores: Sequence[float]) -> list[int]:
    """The rank of each score: how many scores of the pool are as low, or lower. Where all are 0, each ranks last."""
    return [int((pool <= score).sum()) for score in scores]


@cache
def rank_sums(n: int, k: int) -> npt.NDArray[np.float64]:
    """The probability of each sum of k different ranks out of 1 to n, from the sum 0 on, if all choices are alike."""
    if not 0 < k <= n:
        raise ValueError(f"{k} heads among {n} senders; give between 1 and {n}")
    ways = np.zeros((k + 1, k * n + 1))  # (ranks chosen so far, their sum)
    ways[0, 0] = 1.0
    for rank in range(1, n + 1):
        ways[1:, rank:] += ways[:-1, :-rank].copy()
    total: npt.NDArray[np.float64] = ways[k] / ways[k].sum()
    return total
