"""Gates: what must hold before an experiment may speak about a claim.

A failed gate makes the claim INVALID under the gate's name. It never passes, and it is never counted as a refutation.
"""

from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from scipy import stats

from rebinding.paper.claim import Rule
from rebinding.verdicts.estimates import estimate
from rebinding.verdicts.outcome import Verdict, invalid

SURELY = 0.001
"""A model at chance slips through the ability gate once in a thousand runs."""


STILL = 1e-6
"""A change of less than this share of what stood there is rounding: eight units in the last place of 32 bits."""


TIMES_THE_FLOOR = 2
"""Where doing nothing shows as f at most, an effect that is none shows as up to f, and one of m as at least m - f. The
two are told apart if m > 2 f, and not otherwise."""


LEAST_MASS = 0.01
"""A head with less of its attention than this on the slots that are compared has no slot to turn from: one per cent,
below which the paper drops a head."""


@dataclass(frozen=True)
class Gate:
    """One precondition, whether it held, and what was seen."""

    name: str
    passed: bool
    detail: str


def finite(*samples: npt.ArrayLike) -> Gate:
    """Every number is finite: no overflow in 16 bits, no empty softmax row."""
    wrong = sum(int((~np.isfinite(np.asarray(sample, dtype=np.float64))).sum()) for sample in samples)
    return Gate("finite", wrong == 0, f"{wrong} values are not finite; run in a wider dtype")


def declared_n(n: int, declared: int) -> Gate:
    """The evidence holds as many units as the claim declares: no more, no fewer."""
    return Gate("declared_n", n == declared, f"{n} units in the evidence, {declared} declared by the claim")


def above_chance(correct: npt.ArrayLike, chance: float) -> Gate:
    """The full model can do the task: its hits exceed chance by an exact binomial test at 0.1 %."""
    hits = np.asarray(correct)
    if hits.dtype != bool or hits.ndim != 1 or not hits.size:
        raise ValueError(f"got {hits.dtype} of shape {hits.shape}, expected one boolean per prompt: right or wrong")
    p_value = stats.binomtest(int(hits.sum()), hits.size, chance, alternative="greater").pvalue
    seen = f"{hits.sum()} of {hits.size} right, chance is {Fraction(chance).limit_denominator(100)}"
    return Gate("above_chance", bool(p_value <= SURELY), f"{seen} (p = {p_value:.2g}, at most {SURELY} is asked for)")


def above_guessing(correct: npt.ArrayLike, guesses: Mapping[str, npt.ArrayLike]) -> Gate:
    """The model does the task, and does not guess: its hits exceed those of the best guess on the same prompts.

    `guesses` say for every way of guessing on which prompts it would be right. Who guesses in one of these ways, or now
    in one and now in another, is right as often as the best of them at most, and hits of unequal chances spread less
    than a binomial of their mean (Hoeffding): so the binomial test at 0.1 % holds for all of them.
    """
    shares = {name: float(np.mean(np.asarray(right, dtype=bool))) for name, right in guesses.items()}
    best = max(shares, key=lambda name: shares[name])
    found = above_chance(correct, shares[best])
    seen = f"{int(np.asarray(correct).sum())} of {np.asarray(correct).size} right"
    detail = f"{seen}, and {shares[best]:.0%} by guessing ({best}); at most p = {SURELY} is asked for"
    return Gate("above_guessing", found.passed, detail)


def replay_equals_forward(off: npt.ArrayLike, allowed: npt.ArrayLike) -> Gate:
    """A replay in which nothing is edited gives the model's own logits: `off` within what rounding is `allowed`."""
    wrong = ~(np.asarray(off, dtype=np.float64) <= np.asarray(allowed, dtype=np.float64))
    detail = f"{wrong.sum()} of {wrong.size} replays of an unedited prompt are not the model's own forward"
    return Gate(
        "replay_equals_forward", not wrong.any(), f"{detail}: its layers depend on what a replay does not repeat"
    )


def common_shift(changes: npt.ArrayLike) -> float:
    """The noise floor: a bound on the mean of changes (edit, prompt) that are made by edits which are none, of the edit
    that does most, at 5 % on either side.

    What rounding does to one prompt and not to the next is in the spread that every interval is made of. What it does
    to all alike is not: that is the mean, of which a few prompts tell the bound.
    """
    low, high = estimate(changes, unit="prompts").bounds(0.9)
    return float(np.maximum(-low, high).max())


def noise_floor(counts: float, floor: float) -> Gate:
    """What counts, in logits, is above `TIMES_THE_FLOOR` times what doing nothing in another way may do."""
    detail = f"{counts:.3g} logits are to count, and where nothing is edited another order of sums moves up to"
    detail = f"{detail} {floor:.2g}; above {TIMES_THE_FLOOR} times that is asked for: run in float32"
    return Gate("noise_floor", bool(counts > TIMES_THE_FLOOR * floor), detail)


def edits_moved(changes: npt.ArrayLike) -> Gate:
    """Every edit changed something where it was made. `changes`: the largest change of each edit, as a share of what
    stood there."""
    moved = np.abs(np.asarray(changes, dtype=np.float64)) > STILL
    return Gate("edits_moved", bool(moved.all() and moved.size), f"{(~moved).sum()} of {moved.size} edits were no-ops")


def slot_mass(shares: npt.ArrayLike) -> Gate:
    """At least one head has attention on the slots that are compared. `shares`: of every head, how much of it."""
    most = float(np.max(np.asarray(shares, dtype=np.float64), initial=0.0))
    detail = f"no head of group B has {LEAST_MASS:.0%} of its attention on the slots compared (at most {most:.2g}), so"
    return Gate("slot_mass", most >= LEAST_MASS, f"{detail} there is no slot to turn from: give another circuit")


def equal_lengths(first: npt.ArrayLike, second: npt.ArrayLike) -> Gate:
    """Paired prompts have the same number of tokens, so that positions correspond."""
    lengths = np.asarray(first), np.asarray(second)
    same = lengths[0].shape == lengths[1].shape and bool((lengths[0] == lengths[1]).all())
    return Gate("equal_lengths", same, "original and counterfactual prompts differ in length")


def group_present(group: str, heads: Sized) -> Gate:
    """The circuit has heads in the group that the claim is about."""
    return Gate("group_present", len(heads) > 0, f"the circuit has no heads in group {group}")


def circuit_found(heads: Sized, prompts: int) -> Gate:
    """Path patching kept a head at all."""
    detail = f"path patching keeps no head: on {prompts} prompts the effect of none is sure enough"
    return Gate("circuit_found", len(heads) > 0, f"{detail}; ask more (--samples), or give a circuit (--circuit FILE)")


def requirement(name: str, passed: bool, detail: str) -> Gate:
    """A precondition of one experiment, such as `answer_changes` or `token_differs`; `detail` is read if it fails."""
    return Gate(name, bool(passed), detail)


class GateFailed(Exception):
    """Evidence that may not be looked at, and the gate that says so."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(f"{gate.name}: {gate.detail}")
        self.gate = gate


def require(gate: Gate) -> None:
    """Go on only if the gate holds."""
    if not gate.passed:
        raise GateFailed(gate)


def guarded(kind: Rule, gates: Iterable[Gate], rule: Callable[[], Verdict]) -> Verdict:
    """The verdict of `rule` if every gate holds, else INVALID naming the first that fails; `rule` is then not run."""
    for gate in gates:
        if not gate.passed:
            return invalid(kind, gate.name, gate.detail)
    return rule()
