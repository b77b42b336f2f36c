"""The verdict on a claim: one frozen record."""

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from rebinding.paper.claim import Rule

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
    no rule uses them. `conventions` are what each convention shows, for a sentence over several
    models. `reason` is for people; programs read the other fields.
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
