"""Gates: what must hold before an experiment may speak about a claim.

A failed gate makes the claim INVALID under the gate's name. It never passes, and it is never counted as a refutation.
"""

from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from scipy.special import betainc

from rebinding.paper.claim import Rule
from rebinding.verdicts.effects import WIDER
from rebinding.verdicts.estimates import estimate
from rebinding.verdicts.outcome import Verdict, invalid

ABILITY_LEVEL = 0.001
"""A model at chance passes the ability gate once in a thousand runs."""
EVEN = 0.5


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
    flags = [np.isfinite(np.asarray(sample, dtype=np.float64)) for sample in samples]
    wrong, total = sum(int((~flag).sum()) for flag in flags), sum(flag.size for flag in flags)
    return Gate("finite", wrong == 0, f"{wrong} of {total} values are NaN or infinite, none may be: {WIDER}")


def declared_n(n: int, declared: int) -> Gate:
    """The evidence has exactly as many units as the claim declares."""
    detail = f"the evidence has {n} units, the claim declares {declared}, and the two must be equal"
    return Gate("declared_n", n == declared, detail)


def above_chance(correct: npt.ArrayLike, chance: float) -> Gate:
    """The full model can do the task: its hits exceed chance by an exact binomial test at 0.1 %."""
    hits = _hits(correct)
    p_value = _p_of_hits(hits, chance)
    counts = f"{hits.sum()} of {hits.size} answers are right, chance is {Fraction(chance).limit_denominator(100)}"
    return Gate("above_chance", p_value <= ABILITY_LEVEL, f"{counts} ({_bound(p_value)})")


def _hits(correct: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    hits = np.asarray(correct)
    if hits.dtype != bool or hits.ndim != 1 or not hits.size:
        raise ValueError(f"got {hits.dtype} of shape {hits.shape}, expected one boolean per prompt: right or wrong")
    return hits


def _p_of_hits(hits: npt.NDArray[np.bool_], chance: float) -> float:
    """The probability of as many hits or more by chance: the upper tail of the binomial distribution."""
    count = int(hits.sum())
    return float(betainc(count, hits.size - count + 1, chance)) if count else 1.0


def _bound(p_value: float) -> str:
    return f"p = {p_value:.2g}, must be at most {ABILITY_LEVEL}"


def above_guessing(correct: npt.ArrayLike, guesses: Mapping[str, npt.ArrayLike]) -> Gate:
    """The model does the task and does not guess: its hits exceed those of the best guess on the same prompts.

    `guesses` has, for every strategy of guessing, the prompts on which it is right. Half of the prompts is always to be
    exceeded: of the two boxes of a swap one is named first. A model that follows one strategy,
    or mixes them, is right at most as often as the best one. Hits of unequal chances spread less than a binomial of
    their mean (Hoeffding), so the binomial test at 0.1 % holds for all of these models.
    """
    hits = _hits(correct)
    shares = {name: float(np.mean(np.asarray(right, dtype=bool))) for name, right in guesses.items()}
    best = max(shares, key=lambda name: shares[name])
    least = max(EVEN, shares[best])
    p_value = _p_of_hits(hits, least)
    counts = f"{hits.sum()} of {hits.size} answers are right, a model that guesses ({best}) gets {least:.0%}"
    detail = f"{counts} ({_bound(p_value)}): the model may only guess"
    return Gate("above_guessing", p_value <= ABILITY_LEVEL, detail)


def replay_equals_forward(difference: npt.ArrayLike, tolerance: npt.ArrayLike) -> Gate:
    """A replay without edits gives the model's own logits: the `difference` is within the `tolerance` of rounding."""
    wrong = ~(np.asarray(difference, dtype=np.float64) <= np.asarray(tolerance, dtype=np.float64))
    detail = (
        f"{wrong.sum()} of {wrong.size} replays without edits differ from the model's forward pass by more than"
        " rounding, none may: the layers depend on something that a replay does not repeat, so edits cannot be trusted"
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
        f"the smallest effect that counts is {counts:.3g} logits, and must be more than {TIMES_THE_FLOOR} times the"
        f" noise floor of {floor:.2g} (the change of the logits by rounding alone): {WIDER}"
    )
    return Gate("noise_floor", bool(counts > TIMES_THE_FLOOR * floor), detail)


def edits_change_values(changes: npt.ArrayLike) -> Gate:
    """Every edit changed the activations that it edited. `changes`: the largest change of each edit, as a share of the
    original value."""
    has_changed = np.abs(np.asarray(changes, dtype=np.float64)) > NO_OP
    count = f"{(~has_changed).sum()} of {has_changed.size} edits were no-ops, none may be" if has_changed.size else ""
    detail = (
        f"{count or 'there were no edits'}: an edit must change its activations by more than {NO_OP:g} of their value"
    )
    return Gate("edits_change_values", bool(has_changed.all() and has_changed.size), detail)


def slot_mass(shares: npt.ArrayLike) -> Gate:
    """At least one head attends to the compared slots. `shares`: each head's share of attention on them."""
    most = float(np.max(np.asarray(shares, dtype=np.float64), initial=0.0))
    detail = (
        f"the heads of group B have at most {most:.2g} of their attention on the compared slots, one must have at least"
        f" {LEAST_MASS}: no head attends to a slot that an edit could turn it from; give another circuit"
        " (--circuit FILE)"
    )
    return Gate("slot_mass", most >= LEAST_MASS, detail)


def equal_lengths(first: npt.ArrayLike, second: npt.ArrayLike) -> Gate:
    """Paired prompts have the same number of tokens, so that positions correspond."""
    lengths = np.asarray(first), np.asarray(second)
    if lengths[0].shape != lengths[1].shape:
        return Gate("equal_lengths", False, "some prompts have no counterfactual, so they cannot be compared in pairs")
    wrong = lengths[0] != lengths[1]
    detail = f"in {wrong.sum()} of {wrong.size} pairs original and counterfactual differ in their number of tokens"
    return Gate("equal_lengths", not wrong.any(), f"{detail}, none may: their positions would not correspond")


def group_present(group: str, heads: Sized) -> Gate:
    """The circuit has heads in the group that the claim is about."""
    return Gate("group_present", len(heads) > 0, f"the circuit has no heads in group {group}, and the claim needs some")


def circuit_found(heads: Sized, prompts: int) -> Gate:
    """Path patching kept at least one head."""
    detail = f"path patching on {prompts} prompts finds no head whose effect is surely not 0, at least one is needed"
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
