"""The verdict on a claim, how many examples would decide it, and the correction for many claims at once.

The correction gives expected false alarms, and the rejections that survive Holm's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from rebinding.paper.claim import Rule
from rebinding.verdicts.estimates import FEWEST_UNITS, Array, Estimate

Outcome = Literal["REPLICATED", "NOT REPLICATED", "INCONCLUSIVE", "INVALID", "NOT APPLICABLE", "REPORTED"]

Outcomes = npt.NDArray[np.str_]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


class ConventionVerdict(NamedTuple):
    """What one convention shows of a signature on one model: the outcome of the row's own signature, whether it surely
    shows the other family's, and the p-value with which it refutes its own (None: it does not)."""

    name: str
    outcome: Outcome
    shows_other: bool
    p_value: float | None


class Quantity(NamedTuple):
    """A number that a reader expects: a mean with its interval over `n` prompts (`quantities.py`)."""

    name: str
    metric: str
    mean: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class Verdict:
    """The outcome of one claim on one model and the numbers behind it.

    `measured` is our estimate and [`low`, `high`] the interval that the rule used, in the unit of `measured`. For a
    value claim the interval includes the paper's own uncertainty and rounding, so that a reader can compare it with
    paper +- `margin`. `n` counts the declared resampling unit. `needed_n` is the number of units that would decide with
    80 % power if the estimate and its spread stayed as they are; None where nothing is open, or where no number would
    do (the reason says which). `p_value` belongs to the rejecting test: how often data at least this far from the claim
    arise where the claim holds. Numbers that do not exist are None, never NaN or infinite. `finding` is the result of a
    row that only reports. `gate` is the gate that failed; every INVALID verdict has one. `part` names the deciding part
    of a sentence of several parts, or the convention that a number was compared under; for nested parts it is the path,
    outermost first. `unidentified` marks an INCONCLUSIVE verdict on a sentence or number whose convention the paper
    does not identify: it agrees with none of several. `against` is what the estimate is compared with (the printed
    value, 0, chance), and `sample` has the numbers behind the estimate, one per resampled unit: figures draw both, and
    no rule uses them. `quantities` are the numbers that a reader expects, such as the accuracies of which the rule
    judges a difference. `confidence` is
    that of the interval: lower error rates, where several are judged together, make it wider. `conventions` are what
    each convention shows, for a sentence over several models. `reason` is for people; programs read the other fields.
    """

    kind: Rule
    outcome: Outcome
    reason: str
    measured: float | None = None
    low: float | None = None
    high: float | None = None
    margin: float | None = None
    n: int | None = None
    needed_n: int | None = None
    gate: str | None = None
    finding: str | None = None
    part: tuple[str, ...] = ()
    unidentified: bool = False
    p_value: float | None = None
    against: float | None = None
    confidence: float | None = None
    quantities: tuple[Quantity, ...] = ()
    conventions: tuple[ConventionVerdict, ...] = ()
    sample: tuple[float, ...] = field(default=(), repr=False, compare=False)

    @property
    def judged(self) -> bool:
        """Whether a rule judged the evidence: the claim applied and its gates held."""
        return self.outcome not in ("INVALID", "NOT APPLICABLE")


def invalid(kind: Rule, gate: str, reason: str, *, n: int | None = None) -> Verdict:
    """The verdict of an experiment that says nothing about the claim because `gate` failed."""
    return Verdict(kind, "INVALID", reason, n=n, gate=gate)


def not_applicable(kind: Rule, reason: str) -> Verdict:
    """The verdict of a claim that is not about this model."""
    return Verdict(kind, "NOT APPLICABLE", reason)


def reported(
    finding: str,
    reason: str,
    *,
    measured: float | None = None,
    n: int | None = None,
    low: float | None = None,
    high: float | None = None,
    against: float | None = None,
) -> Verdict:
    """The verdict of a row that claims nothing: its finding, in a word."""
    return Verdict(
        "report", "REPORTED", reason, measured=measured, low=low, high=high, n=n, finding=finding, against=against
    )


def decided(
    replicated: npt.NDArray[np.bool_], rejected: npt.NDArray[np.bool_], *, enough: npt.NDArray[np.bool_]
) -> Outcomes:
    """Outcomes of many experiments: the first condition that holds; INCONCLUSIVE where the units are too few."""
    names: tuple[Outcome, Outcome, Outcome] = ("REPLICATED", "NOT REPLICATED", "INCONCLUSIVE")
    return np.select([enough & replicated, enough & rejected], names[:2], names[2])


def single_outcome(outcomes: Outcomes) -> Outcome:
    """The outcome of a single experiment."""
    return OUTCOMES[OUTCOMES.index(outcomes.item())]


def per_unit(values: npt.ArrayLike) -> tuple[float, ...]:
    """One number per unit (the last axis), averaged over the axes before it (draws, which repeat the units). Six
    digits, more than a figure can show."""
    table = np.asarray(values, dtype=np.float64)
    if not table.size:
        return ()
    return tuple(float(f"{number:.6g}") for number in table.reshape(-1, table.shape[-1]).mean(axis=0))


def finite_or_none(number: float) -> float | None:
    """A plain float, or None for NaN and infinities, which JSON cannot carry."""
    return float(number) if math.isfinite(number) else None


POWER = 0.80
MOST_UNITS = 10_000_000
SIZES = np.unique(np.geomspace(FEWEST_UNITS, MOST_UNITS, 4000).round())
"""The candidate sizes, in equal ratios."""
STRIDE = 64
"""The search first tries every 64th size."""
REACH = float(ndtri((1 + POWER) / 2))
"""A second estimate falls within this many of its standard errors with probability `POWER`."""


def needed_units(rule: Callable[[Estimate], Outcomes], estimate: Estimate) -> int | None:
    """The smallest number of units at which `rule` decides with 80 % power, if estimate and spread stay as they are.

    The estimate of a second run of that size falls, with probability 0.8, within 1.28 of its standard errors; where the
    rule gives the same decided outcome at both ends of that range it gives it in between. None if ten million units
    would not do: then something else limits the answer (the paper's N, its rounding, or the number of draws). A size
    that decides is followed by sizes that decide, so the search tries a few sizes, then all between two of them.
    """
    if not np.isfinite(estimate.unit_var).all():
        return FEWEST_UNITS if estimate.draws is None else None
    sizes = SIZES[estimate.n < SIZES]

    def first_deciding(candidates: Array) -> int | None:
        below, above = (rule(estimate.with_n(candidates, shift)) for shift in (-REACH, REACH))
        decides = (below == above) & (below != "INCONCLUSIVE")
        return int(decides.argmax()) if decides.any() else None

    ends = np.append(np.arange(0, len(sizes) - 1, STRIDE), len(sizes) - 1)  # the last size of every stretch
    stretch = first_deciding(sizes[ends])
    if stretch is None:
        return None
    begin = ends[stretch - 1] + 1 if stretch else 0
    candidates = sizes[begin : ends[stretch] + 1]
    index = first_deciding(candidates)
    assert index is not None  # the last size of the stretch decides
    return int(candidates[index])


@dataclass(frozen=True)
class FamilyOfClaims:
    """The global statement over a run.

    Of `judged` claims, if all were true, `expected_false_alarms` would be NOT REPLICATED by luck (an upper bound: the
    rules keep each error at or below `level`, whatever their dependence). `rejected` are NOT REPLICATED; of these
    `surviving` remain so with family-wise error `level` (Holm). `adjusted` has the adjusted p-values of all judged
    claims that have a p-value.
    """

    level: float
    judged: int
    expected_false_alarms: float
    rejected: tuple[str, ...]
    surviving: tuple[str, ...]
    adjusted: Mapping[str, float]

    @property
    def statement(self) -> str:
        """One sentence for the end of a run."""
        luck = f"{self.judged} rows judged, at most {self.expected_false_alarms:.1f} false alarms expected by luck"
        stand = ", ".join(self.surviving) or "none"
        return f"{luck}; {len(self.rejected)} not replicated, surely so after Holm's correction: {stand}"


def family(verdicts: Mapping[str, Verdict], *, level: float = 0.05) -> FamilyOfClaims:
    """Holm's correction over the rejecting tests of all judged claims (any dependence between them is allowed)."""
    judged = {name: verdict for name, verdict in verdicts.items() if verdict.judged and verdict.kind != "report"}
    p_values = {name: verdict.p_value for name, verdict in judged.items() if verdict.p_value is not None}
    adjusted = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    rejected = tuple(name for name, verdict in judged.items() if verdict.outcome == "NOT REPLICATED")
    surviving = tuple(name for name in rejected if adjusted.get(name, 1.0) <= level)
    return FamilyOfClaims(level, len(judged), level * len(judged), rejected, surviving, adjusted)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values: the k-th smallest of n times n - k + 1, at least its predecessor's and at most 1.

    The same as `multipletests(p_values, method="holm")` of statsmodels, which collects garbage on every call: half the
    time of a run of claims.
    """
    order = np.argsort(p_values)
    factors = np.arange(len(p_values), 0, -1)
    stepped = np.maximum.accumulate(np.asarray(p_values, dtype=np.float64)[order] * factors)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(stepped, 1.0)
    return [float(p) for p in adjusted]
