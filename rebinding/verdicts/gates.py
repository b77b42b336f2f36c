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

ABILITY_LEVEL = 0.001
"""A model at chance passes the ability gate once in a thousand runs."""


NO_OP = 1e-6
"""A change below this share of the original value is rounding: eight units in the last place of 32 bits."""


TIMES_THE_FLOOR = 2
"""With a noise floor of f, no effect shows as up to f, and an effect of m shows as at least m - f. The two can be told
apart only if m > 2 f."""


LEAST_MASS = 0.01
"""A head with a smaller share of its attention on the compared slots has no slot to turn from: one per cent, where the
paper drops a head."""


@dataclass(frozen=True)
class Gate:
    """One precondition, whether it held, and what was measured and needed."""

    name: str
    passed: bool
    detail: str


def finite(*samples: npt.ArrayLike) -> Gate:
    """Every number is finite: no overflow in 16 bits, no empty softmax row."""
    wrong = sum(int((~np.isfinite(np.asarray(sample, dtype=np.float64))).sum()) for sample in samples)
    return Gate("finite", wrong == 0, f"{wrong} values are NaN or infinite, none may be: run in a wider dtype")


def declared_n(n: int, declared: int) -> Gate:
    """The evidence has exactly as many units as the claim declares."""
    return Gate("declared_n", n == declared, f"the evidence has {n} units, the claim declares {declared}")


def above_chance(correct: npt.ArrayLike, chance: float) -> Gate:
    """The full model can do the task: its hits exceed chance by an exact binomial test at 0.1 %."""
    hits = np.asarray(correct)
    if hits.dtype != bool or hits.ndim != 1 or not hits.size:
        raise ValueError(f"got {hits.dtype} of shape {hits.shape}, expected one boolean per prompt: right or wrong")
    p_value = stats.binomtest(int(hits.sum()), hits.size, chance, alternative="greater").pvalue
    counts = f"{hits.sum()} of {hits.size} answers are right, chance is {Fraction(chance).limit_denominator(100)}"
    passed = bool(p_value <= ABILITY_LEVEL)
    return Gate("above_chance", passed, f"{counts} (p = {p_value:.2g}, must be at most {ABILITY_LEVEL})")


def above_guessing(correct: npt.ArrayLike, guesses: Mapping[str, npt.ArrayLike]) -> Gate:
    """The model does the task and does not guess: its hits exceed those of the best guess on the same prompts.

    `guesses` has, for every strategy of guessing, the prompts on which it is right. A model that follows one strategy,
    or mixes them, is right at most as often as the best one. Hits of unequal chances spread less than a binomial of
    their mean (Hoeffding), so the binomial test at 0.1 % holds for all of these models.
    """
    shares = {name: float(np.mean(np.asarray(right, dtype=bool))) for name, right in guesses.items()}
    best = max(shares, key=lambda name: shares[name])
    passed = above_chance(correct, shares[best]).passed
    counts = f"{int(np.asarray(correct).sum())} of {np.asarray(correct).size} answers are right"
    detail = f"{counts}, guessing ({best}) gets {shares[best]:.0%}; more is needed, with p of at most {ABILITY_LEVEL}"
    return Gate("above_guessing", passed, detail)


def replay_equals_forward(off: npt.ArrayLike, allowed: npt.ArrayLike) -> Gate:
    """A replay without edits gives the model's own logits: `off`, the difference, is within the `allowed` rounding."""
    wrong = ~(np.asarray(off, dtype=np.float64) <= np.asarray(allowed, dtype=np.float64))
    detail = (
        f"{wrong.sum()} of {wrong.size} replays without edits differ from the model's forward pass by more than"
        " rounding, none may: the layers depend on something that a replay does not repeat"
    )
    return Gate("replay_equals_forward", not wrong.any(), detail)


def common_shift(changes: npt.ArrayLike) -> float:
    """The noise floor: the largest bound, over edits that change nothing, on the mean of their changes (edit, prompt),
    at 5 % on either side.

    Rounding that differs between prompts is part of the spread behind every interval. Rounding that is the same for all
    prompts is not: it is the mean, and a few prompts are enough to bound it.
    """
    low, high = estimate(changes, unit="prompts").bounds(0.9)
    return float(np.maximum(-low, high).max())


def noise_floor(counts: float, floor: float) -> Gate:
    """The smallest effect that counts, in logits, exceeds `TIMES_THE_FLOOR` times the noise floor."""
    detail = (
        f"an effect counts from {counts:.3g} logits on, which must be more than {TIMES_THE_FLOOR} times the noise floor"
        f" of {floor:.2g} (the change by another order of sums, without an edit): run with --dtype float32"
    )
    return Gate("noise_floor", bool(counts > TIMES_THE_FLOOR * floor), detail)


def edits_moved(changes: npt.ArrayLike) -> Gate:
    """Every edit changed the activations that it edited. `changes`: the largest change of each edit, as a share of the
    original value."""
    moved = np.abs(np.asarray(changes, dtype=np.float64)) > NO_OP
    detail = f"{(~moved).sum()} of {moved.size} edits were no-ops; every edit must change what it edits"
    return Gate("edits_moved", bool(moved.all() and moved.size), detail)


def slot_mass(shares: npt.ArrayLike) -> Gate:
    """At least one head attends to the compared slots. `shares`: each head's share of attention on them."""
    most = float(np.max(np.asarray(shares, dtype=np.float64), initial=0.0))
    detail = f"a head of group B has at most {most:.2g} of its attention on the compared slots, {LEAST_MASS} is needed"
    return Gate("slot_mass", most >= LEAST_MASS, f"{detail} for a slot to turn from: give another circuit")


def equal_lengths(first: npt.ArrayLike, second: npt.ArrayLike) -> Gate:
    """Paired prompts have the same number of tokens, so that positions correspond."""
    lengths = np.asarray(first), np.asarray(second)
    same = lengths[0].shape == lengths[1].shape and bool((lengths[0] == lengths[1]).all())
    detail = "original and counterfactual prompts differ in their number of tokens, so positions do not correspond"
    return Gate("equal_lengths", same, detail)


def group_present(group: str, heads: Sized) -> Gate:
    """The circuit has heads in the group that the claim is about."""
    return Gate("group_present", len(heads) > 0, f"the circuit has no heads in group {group}, and the claim needs some")


def circuit_found(heads: Sized, prompts: int) -> Gate:
    """Path patching kept at least one head."""
    detail = f"path patching keeps no head: on {prompts} prompts no head has a sure effect, at least one must"
    return Gate(
        "circuit_found", len(heads) > 0, f"{detail}: give more prompts (--samples) or a circuit (--circuit FILE)"
    )


def requirement(name: str, passed: bool, detail: str) -> Gate:
    """A precondition of one experiment, such as `answer_changes` or `token_differs`; `detail` is shown if it fails."""
    return Gate(name, bool(passed), detail)


class GateFailed(Exception):
    """Evidence that no rule may use, and the gate that failed."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(f"{gate.name}: {gate.detail}")
        self.gate = gate


def require(gate: Gate) -> None:
    """Raise `GateFailed` unless the gate holds."""
    if not gate.passed:
        raise GateFailed(gate)


def guarded(kind: Rule, gates: Iterable[Gate], rule: Callable[[], Verdict]) -> Verdict:
    """The verdict of `rule` if every gate holds; else INVALID under the first that fails, without running `rule`."""
    for gate in gates:
        if not gate.passed:
            return invalid(kind, gate.name, gate.detail)
    return rule()
