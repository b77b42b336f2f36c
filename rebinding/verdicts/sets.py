"""Set claims: which heads were selected, and whether a group is empty.

The overlap of two selections is compared with two baselines: chance (as many heads drawn at random) and ourselves (how
much of our own selection returns on other prompts).

Knowing only the layers of a group already gives more overlap with the published heads than a random draw from all
heads: draws from the published layers and two on either side pass that null in 40 % (twenty heads in four layers). So
there are two nulls. `universe`: all heads alike, hypergeometric. `layers`: as many heads
in every layer as our selection has there, drawn at random within the layer. The overlap is then a sum of independent
hypergeometric counts, and its distribution is their convolution. A draw that knows only its layers is uniform within
them, so it passes this null in at most 5 %, whichever layers it knows.

**Small groups**: the ranks of a few published heads among all senders of a stage.

A stage keeps ten heads or more. A random draw of ten of 672 heads contains a single published one in 1.5 %, whether
that head ranks first of the ten or last. So an overlap cannot tell a group of one or two heads from luck once several
conventions share the level. The stage's scores say more: the rank of each published head among all senders, the largest
drop first. If nothing ties the published heads to the stage they are k of n heads drawn at random, and the sum of their
ranks has an exact distribution (that of the rank-sum test; for one head, rank / n). Ties count against the group.

The nulls are the same two: `universe`, ranks among all heads; `layers`, ranks within each published head's own layer,
because a group's layers alone say much about its rank among all heads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cache, reduce
from math import comb
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from rebinding.paper.circuit import Head
from rebinding.verdicts.estimates import wilson
from rebinding.verdicts.outcome import Outcome, Verdict, per_unit

Null: TypeAlias = Literal["universe", "layers"]
Repetition: TypeAlias = tuple[Collection[Hashable], Collection[Hashable]]
"""Two selections of our own on prompts of which they share none."""
FEWEST_REPETITIONS = 19
"""With fewer of our own repetitions no overlap can rank among the worst 5 % of them: 1 / (19 + 1)."""
FEWEST_AGREEING = 3
"""Three repetitions that agree are the fewest whose one-sided 95 % Wilson bound, 3 / (3 + 1.645^2), exceeds 1/2."""


def overlap(
    selection: Collection[Hashable],
    published: Collection[Hashable],
    *,
    universe: int,
    repetitions: Sequence[Repetition],
    null: Null = "universe",
    layers: int = 1,
    level: float = 0.05,
) -> Verdict:
    """Does our selection overlap the published one beyond chance?

    REPLICATED if a random draw reaches the overlap with probability at most `level`. NOT REPLICATED if it does not, and
    the published set is also unlike our own: among the overlaps of our `repetitions` one this small has probability at
    most `level` (rank test). Each repetition is a pair of our selections on prompts of their own. INCONCLUSIVE if these
    vary too much to tell, and where even full overlap would be likely by chance (one head of a layer's eight). Heads of
    ours in other layers cannot overlap fully; there the best case is the probability to draw the published heads in
    their layers.
    The null `layers` needs the number of equally large layers in `universe`, and heads as (layer, head).
    `measured` is the overlap as a share of the smaller set; [low, high] the range of that share over our repetitions.
    """
    selected, printed = frozenset(selection), frozenset(published)
    _check(selected, printed, universe)
    shared = len(selected & printed)
    null_pmf = _null_pmf(selected, printed, universe, null, layers)  # probability of every overlap, from 0 on
    possible = selected if len(null_pmf) > min(len(selected), len(printed)) else printed  # ours may lie in other layers
    full = _null_pmf(possible, printed, universe, null, layers)
    chance, best = float(null_pmf[shared:].sum()), float(full[np.flatnonzero(full)[-1]])
    pool = f"{universe} heads" if null == "universe" else f"{universe} heads in {layers} layers, drawn within each"
    numbers = f"{shared} heads are in both selections, of {len(selected)} ours and {len(printed)} published"
    numbers = f"{numbers} among {pool} (chance p = {chance:.2g})"
    return judge_selection(selected, printed, chance, best, repetitions, numbers, level)


def judge_selection(
    selected: frozenset[Hashable],
    published: frozenset[Hashable],
    chance: float,
    best: float,
    repetitions: Sequence[Repetition],
    numbers: str,
    level: float,
) -> Verdict:
    """The verdict from `chance`, the probability that a random draw does as well, and from our own repetitions.

    `best` is that probability for the best possible selection, and `numbers` states the counts for the reason.
    """
    share = _share(selected, published)
    own = np.array([_share(frozenset(first), frozenset(second)) for first, second in repetitions], dtype=np.float64)
    rank = float((1 + (own <= share).sum()) / (1 + len(own)))
    outcome: Outcome = "REPLICATED" if chance <= level else "NOT REPLICATED" if rank <= level else "INCONCLUSIVE"
    if best > level:
        outcome = "INCONCLUSIVE"
    return Verdict(
        "set",
        outcome,
        f"{numbers}; {_stability(own, best, level)}",
        measured=share,
        low=float(own.min()) if len(own) else None,
        high=float(own.max()) if len(own) else None,
        n=len(own),
        needed_n=FEWEST_REPETITIONS if outcome == "INCONCLUSIVE" and len(own) < FEWEST_REPETITIONS else None,
        p_value=rank,
        sample=per_unit(own),
    )


def _null_pmf(
    selected: frozenset[Hashable], published: frozenset[Hashable], universe: int, null: Null, layers: int
) -> npt.NDArray[np.float64]:
    """The probability of each overlap for heads drawn at random."""
    if null == "universe":
        return _hypergeometric(universe, len(published), len(selected))
    width, rest = divmod(universe, layers)
    selected_at, published_at = _count_by_layer(selected), _count_by_layer(published)
    fullest, last = max((*selected_at.values(), *published_at.values())), max((*selected_at, *published_at))
    if rest or fullest > width or last >= layers:
        raise ValueError(f"{universe} heads in {layers} equal layers do not contain all heads of the two selections")
    return reduce(np.convolve, [_hypergeometric(width, published_at[layer], n) for layer, n in selected_at.items()])


def _hypergeometric(universe: int, marked: int, draws: int) -> npt.NDArray[np.float64]:
    ways = [comb(marked, hits) * comb(universe - marked, draws - hits) for hits in range(min(marked, draws) + 1)]
    return np.array([count / comb(universe, draws) for count in ways])


def _count_by_layer(heads: frozenset[Hashable]) -> Counter[int]:
    malformed = [head for head in heads if not (isinstance(head, tuple) and len(head) == 2)]
    if malformed:
        raise ValueError(f"got the head {malformed[0]!r}; with the null 'layers', give heads as (layer, head)")
    return Counter(head[0] for head in heads if isinstance(head, tuple))


def emptiness(
    selection: Collection[Hashable],
    *,
    empty: bool,
    selections: Sequence[Collection[Hashable]],
    level: float = 0.05,
) -> Verdict:
    """Is our selection of this group empty, or not, as stated?

    `selections` are repetitions of ours on prompts of their own. Decided if our selection and surely more than half of
    these agree: the one-sided Wilson bound of the share of agreeing repetitions must exclude one half.
    """
    holds = (len(selection) == 0) == empty
    agree = [((len(repetition) == 0) == empty) for repetition in selections]
    state = "empty" if empty else "not empty"
    counts = f"the paper's group is {state}, ours has {len(selection)} heads"
    if not agree:
        reason = f"{counts}; there are no repetitions of our selection to compare with"
        return Verdict("set", "INCONCLUSIVE", reason, needed_n=FEWEST_AGREEING)
    share = float(np.mean(agree))
    low, high = (float(bound) for bound in wilson(share, len(agree), 1 - 2 * level))
    outcome: Outcome = "INCONCLUSIVE"
    if holds and low > 0.5:
        outcome = "REPLICATED"
    elif not holds and high < 0.5:
        outcome = "NOT REPLICATED"
    reason = f"{counts}; {sum(agree)} of {len(agree)} repetitions of our selection are {state}"
    needed = FEWEST_AGREEING if outcome == "INCONCLUSIVE" and len(agree) < FEWEST_AGREEING else None
    return Verdict(
        "set",
        outcome,
        reason,
        measured=share,
        low=low,
        high=high,
        n=len(agree),
        needed_n=needed,
        against=0.5,
        sample=per_unit(agree),
    )


def absence(selections: Sequence[Collection[Hashable]], *, level: float = 0.05) -> Verdict:
    """Our selection of a group is empty, which the paper's is not. Would it be empty on most other prompts?

    `selections` are ours on resampled prompts, which stay close to ours; so a majority of them says too little (it errs
    in a third of runs where one head is on the verge). NOT REPLICATED if a selection with heads is among them with
    probability at most `level`, as in a percentile bootstrap.
    """
    with_heads = sum(len(selection) > 0 for selection in selections)
    p_value = (1 + with_heads) / (1 + len(selections))
    outcome: Outcome = "NOT REPLICATED" if p_value <= level else "INCONCLUSIVE"
    reason = f"our selection is empty, and {with_heads} of {len(selections)} on resampled prompts have heads"
    return Verdict("set", outcome, reason, measured=0.0, n=len(selections), p_value=p_value)


def _share(first: frozenset[Hashable], second: frozenset[Hashable]) -> float:
    smaller = min(len(first), len(second))
    return len(first & second) / smaller if smaller else 0.0  # a repetition may select nothing


def _check(selected: frozenset[Hashable], published: frozenset[Hashable], universe: int) -> None:
    if not selected or not published:
        empty = "our" if not selected else "the published"
        raise ValueError(f"{empty} selection is empty, so no overlap exists; use `emptiness` for empty groups")
    if (members := len(selected | published)) > universe:
        raise ValueError(f"{members} different members in a universe of {universe}; count all candidates")


def _stability(own: npt.NDArray[np.float64], best: float, level: float) -> str:
    if best > level:
        return "among so few heads even full overlap would be chance"
    if not len(own):
        return "our own selection was not repeated"
    return f"two selections of our own share {own.mean():.0%} ({len(own)} repetitions)"


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
