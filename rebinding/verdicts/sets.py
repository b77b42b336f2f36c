"""Set claims: which heads were found, and whether a group is empty.

The overlap of two selections is read against two yardsticks: chance (as many heads drawn blindly) and ourselves (how
well our own selection finds itself again on other prompts).

Who knows in which layers a group lies, and nothing else, already meets the published heads more often than a blind
draw from all heads: draws from the published layers and two on either side pass that null in 40 % (twenty heads in
four layers). So there are two nulls. `universe`, for the published procedure: all heads alike, hypergeometric.
`layers`: as many heads in every layer as ours has there, drawn blindly within the layer; the overlap is then a sum of
independent hypergeometric counts, whose distribution is their convolution. Given its layers, a draw that knows no more
is uniform within them, so it passes this null in at most 5 %, whichever layers it knew.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from functools import reduce
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import stats

from rebinding.verdicts.estimates import wilson
from rebinding.verdicts.outcome import Outcome, Verdict, per_unit

Null: TypeAlias = Literal["universe", "layers"]
FEWEST_SELECTIONS = 19
"""With fewer of our own selections the published one cannot rank among the worst 5 % of them: 1 / (19 + 1)."""
FEWEST_AGREEING = 3
"""Three repetitions that agree are the fewest whose one-sided 95 % Wilson bound, 3 / (3 + 1.645^2), exceeds 1/2."""


def overlap(
    ours: Collection[Hashable],
    published: Collection[Hashable],
    *,
    universe: int,
    selections: Sequence[Collection[Hashable]],
    null: Null = "universe",
    layers: int = 1,
    level: float = 0.05,
) -> Verdict:
    """Does our selection overlap the published one beyond chance?

    `selections` are our own procedure run again, on resampled prompts or in another order. REPLICATED if blind drawing
    reaches the overlap with probability at most `level`. NOT REPLICATED if it does not and the published set is also a
    stranger among our own selections: if it were one more of them, an overlap with ours this small would have
    probability at most `level` (rank test). INCONCLUSIVE if our own selection varies too much to tell.
    Where even full overlap would be no news (one head of a layer's eight), it is INCONCLUSIVE; heads of ours in other
    layers cannot overlap fully, and are measured by how rare it is to draw the published ones in theirs.
    The null `layers` needs to know how many equally large layers the universe has, and heads that say their own:
    (layer, head).
    `measured` is the overlap as a share of the smaller set; [low, high] the range of that share over our selections.
    """
    mine, theirs = frozenset(ours), frozenset(published)
    _check(mine, theirs, universe)
    shared = len(mine & theirs)
    blind = _blind(mine, theirs, universe, null, layers)  # probability of every overlap, from 0 on
    possible = mine if len(blind) > min(len(mine), len(theirs)) else theirs  # ours may lie in other layers
    full = _blind(possible, theirs, universe, null, layers)
    chance, best = float(blind[shared:].sum()), float(full[np.flatnonzero(full)[-1]])
    among = f"{universe}" if null == "universe" else f"{universe} in {layers} layers, drawn within each"
    numbers = f"{shared} of {len(mine)} ours and {len(theirs)} published among {among} (chance p = {chance:.2g})"
    return judge_selection(mine, theirs, chance, best, selections, numbers, level)


def judge_selection(
    mine: frozenset[Hashable],
    theirs: frozenset[Hashable],
    chance: float,
    best: float,
    selections: Sequence[Collection[Hashable]],
    numbers: str,
    level: float,
) -> Verdict:
    """The verdict from how often chance does as well as our selection, and from our own selections.

    `best` is that probability for a selection that could not be better, and `numbers` says what was counted.
    """
    share = _share(mine, theirs)
    own = np.array([_share(mine, frozenset(selection)) for selection in selections], dtype=np.float64)
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
        needed_n=FEWEST_SELECTIONS if outcome == "INCONCLUSIVE" and len(own) < FEWEST_SELECTIONS else None,
        p_value=rank,
        sample=per_unit(own),
    )


def _blind(
    mine: frozenset[Hashable], theirs: frozenset[Hashable], universe: int, null: Null, layers: int
) -> npt.NDArray[np.float64]:
    """How probable each overlap is for heads drawn blindly."""
    if null == "universe":
        return _drawn(universe, len(theirs), len(mine))
    width, rest = divmod(universe, layers)
    here, there = _by_layer(mine), _by_layer(theirs)
    if rest or max((*here.values(), *there.values())) > width or max((*here, *there)) >= layers:
        raise ValueError(f"{universe} heads in {layers} layers do not make layers that hold all these heads")
    parts = [_drawn(width, there[layer], count) for layer, count in here.items()]
    return reduce(np.convolve, parts)


def _drawn(universe: int, marked: int, drawn: int) -> npt.NDArray[np.float64]:
    return np.asarray(stats.hypergeom.pmf(np.arange(min(marked, drawn) + 1), universe, marked, drawn))


def _by_layer(heads: frozenset[Hashable]) -> Counter[int]:
    strange = [head for head in heads if not (isinstance(head, tuple) and len(head) == 2)]
    if strange:
        raise ValueError(f"got the head {strange[0]!r}; within layers, a head is (layer, head)")
    return Counter(head[0] for head in heads if isinstance(head, tuple))


def emptiness(
    ours: Collection[Hashable],
    *,
    empty: bool,
    selections: Sequence[Collection[Hashable]],
    level: float = 0.05,
) -> Verdict:
    """Is our selection of this group empty, or not, as stated?

    Decided if our selection and the surely larger part of our own repetitions agree: the one-sided Wilson bound of the
    share of repetitions that say the same must exclude one half.
    """
    holds = (len(ours) == 0) == empty
    agree = [((len(selection) == 0) == empty) for selection in selections]
    stated = "empty" if empty else "not empty"
    if not agree:
        reason = f"stated {stated}, ours has {len(ours)} heads; no repetitions to read it beside"
        return Verdict("set", "INCONCLUSIVE", reason, needed_n=FEWEST_AGREEING)
    share = float(np.mean(agree))
    low, high = (float(bound) for bound in wilson(share, len(agree), 1 - 2 * level))
    outcome: Outcome = "INCONCLUSIVE"
    if holds and low > 0.5:
        outcome = "REPLICATED"
    elif not holds and high < 0.5:
        outcome = "NOT REPLICATED"
    reason = f"stated {stated}, ours has {len(ours)} heads; {sum(agree)} of {len(agree)} repetitions are {stated}"
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


def _share(first: frozenset[Hashable], second: frozenset[Hashable]) -> float:
    smaller = min(len(first), len(second))
    return len(first & second) / smaller if smaller else 0.0  # a repetition may find nothing


def _check(mine: frozenset[Hashable], theirs: frozenset[Hashable], universe: int) -> None:
    if not mine or not theirs:
        empty = "our" if not mine else "the published"
        raise ValueError(f"{empty} selection is empty, so no overlap exists; use `emptiness` for empty groups")
    if len(mine | theirs) > universe:
        raise ValueError(f"{len(mine | theirs)} different members in a universe of {universe}; count all candidates")


def _stability(own: npt.NDArray[np.float64], best: float, level: float) -> str:
    if best > level:
        return "even full overlap would be chance among so few"
    if not len(own):
        return "our own selection was not repeated"
    return f"our own selection finds {own.mean():.0%} of itself again ({len(own)} repetitions)"
