"""Small groups: the ranks of a few published heads among all senders of a stage.

A stage keeps ten heads and more. Of 672 heads a blind draw of ten holds a single published one in 1.5 %, whether that
head was the first of the ten or the last, so an overlap cannot tell a group of one or two heads from luck once several
conventions share the level. The stage's scores say more: where each published head stands among all senders, the
largest fall first. If nothing ties the published heads to the stage they are k of n heads drawn blindly, and the sum of
their ranks has an exact distribution (that of the rank-sum test; for one head, rank / n). Ties count against the group.

The nulls are those of `rebinding.verdicts.sets`: `universe`, ranks among all heads; `layers`, ranks within each
published head's own layer, because whoever knows a group's layers knows much of its rank among all.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, reduce

import numpy as np
import numpy.typing as npt

from rebinding.paper.circuit import Head
from rebinding.verdicts.outcome import Verdict
from rebinding.verdicts.sets import Null, judge_selection


def rank_overlap(
    ours: Collection[Head],
    published: Collection[Head],
    *,
    scores: Mapping[Head, float],
    selections: Sequence[Collection[Head]],
    null: Null = "universe",
    level: float = 0.05,
) -> Verdict:
    """Are the published heads among those that our stage keeps, and at its top beyond chance?

    REPLICATED if our selection has one of them at least and blind drawing reaches their sum of ranks with probability
    at most `level`. NOT REPLICATED if our selection has none of them, which would be rare (at most `level`) if they
    were one more of our own `selections`; see `overlap`. So no evidence can do both, at whatever levels.
    `scores` has every sender of the stage; the lowest score is the largest fall, and has rank 1.
    """
    mine, theirs = frozenset(ours), frozenset(published)
    if not mine or not theirs:
        empty = "our" if not mine else "the published"
        raise ValueError(f"{empty} selection is empty, so no head has a rank; use `emptiness` for empty groups")
    if strange := (mine | theirs) - scores.keys():
        raise ValueError(f"head {min(strange)} has no score; give the scores of all senders of the stage")
    pools = _pools(theirs, scores, null)
    ranks = [rank for pool, heads in pools for rank in ranks_in(pool, [scores[head] for head in heads])]
    blind = reduce(np.convolve, [rank_sums(len(pool), len(heads)) for pool, heads in pools])
    shared = len(mine & theirs)
    chance = float(blind[: sum(ranks) + 1].sum()) if shared else 1.0
    best = float(blind[np.flatnonzero(blind)[0]])
    among = f"{len(scores)} senders" if null == "universe" else "the senders of each layer"
    seen = f"published heads have rank {', '.join(map(str, sorted(ranks)))} among {among}"
    kept = f"{shared} of {len(theirs)} are among the {len(mine)} that our stage keeps"
    numbers = f"{seen}, {kept} (chance p = {chance:.2g})"
    verdict = judge_selection(mine, theirs, chance, best, selections, numbers, level)
    return replace(verdict, outcome="INCONCLUSIVE") if shared and verdict.outcome == "NOT REPLICATED" else verdict


def _pools(
    heads: frozenset[Head], scores: Mapping[Head, float], null: Null
) -> list[tuple[npt.NDArray[np.float64], list[Head]]]:
    """The scores among which heads are ranked, and the heads that are: all at once, or layer by layer."""
    if null == "universe":
        return [(np.array(list(scores.values())), sorted(heads))]
    return [
        (
            np.array([score for (at, _), score in scores.items() if at == layer]),
            sorted(head for head in heads if head[0] == layer),
        )
        for layer in sorted({layer for layer, _ in heads})
    ]


def ranks_in(pool: npt.NDArray[np.float64], scores: Sequence[float]) -> list[int]:
    """How many scores of the pool are as low as each of these, or lower: where all are 0, each has the last rank."""
    return [int((pool <= score).sum()) for score in scores]


@cache
def rank_sums(n: int, k: int) -> npt.NDArray[np.float64]:
    """How probable each sum of k different ranks of 1 to n is, from the sum 0 on, if all choices are alike."""
    if not 0 < k <= n:
        raise ValueError(f"{k} heads among {n} senders; give between 1 and {n}")
    ways = np.zeros((k + 1, k * n + 1))  # (ranks chosen so far, their sum)
    ways[0, 0] = 1.0
    for rank in range(1, n + 1):
        ways[1:, rank:] += ways[:-1, :-rank].copy()
    total: npt.NDArray[np.float64] = ways[k] / ways[k].sum()
    return total
