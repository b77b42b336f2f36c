"""Gates: what must hold before an experiment may speak about a claim.

A failed gate makes the claim INVALID under the gate's name. It never passes, and it is never counted as a refutation.
"""

from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from scipy import stats

from rebinding.paper.claim import Rule
from rebinding.verdicts.outcome import Verdict, invalid

SURELY = 0.001
"""A model at chance slips through the ability gate once in a thousand runs."""


STILL = 1e-6
"""A change of less than this share of what stood there is rounding: eight units in the last place of 32 bits."""


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


def edits_moved(changes: npt.ArrayLike) -> Gate:
    """Every edit changed something where it was made. `changes`: the largest change of each edit, as a share of what
    stood there."""
    moved = np.abs(np.asarray(changes, dtype=np.float64)) > STILL
    return Gate("edits_moved", bool(moved.all() and moved.size), f"{(~moved).sum()} of {moved.size} edits were no-ops")


def equal_lengths(first: npt.ArrayLike, second: npt.ArrayLike) -> Gate:
    """Paired prompts have the same number of tokens, so that positions correspond."""
    lengths = np.asarray(first), np.asarray(second)
    same = lengths[0].shape == lengths[1].shape and bool((lengths[0] == lengths[1]).all())
    return Gate("equal_lengths", same, "original and counterfactual prompts differ in length")


def group_present(group: str, heads: Sized) -> Gate:
    """The circuit has heads in the group that the claim is about."""
    return Gate("group_present", len(heads) > 0, f"the circuit has no heads in group {group}")


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
