"""Value claims: does a measurement agree with a printed number?

Let D = ours - paper. REPLICATED if the 90 % interval of D lies within +-margin (two one-sided tests at 5 %), NOT
REPLICATED if it surely lies outside (`p_outside`), INCONCLUSIVE otherwise: one boundary, for either decision. The
printed number brings its own sampling error and its rounding: the interval is widened by the half-width, so rounding
can neither earn nor cost a replication. Both samples are taken as independent; where ours has the paper's own prompts
this only makes the interval too long.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rebinding.paper.claim import Unit
from rebinding.paper.numbers import PublishedNumber
from rebinding.verdicts.effects import check_margin, nonfinite_reason
from rebinding.verdicts.estimates import FEWEST_UNITS, Array, Estimate, estimate, freedom, p_outside, students, wilson
from rebinding.verdicts.outcome import (
    Outcome,
    Outcomes,
    Verdict,
    decided,
    finite_or_none,
    invalid,
    needed_units,
    per_unit,
    single_outcome,
)
from rebinding.verdicts.quantities import with_quantities


@dataclass(frozen=True)
class PrintedReference:
    """A printed number as the rule uses it: a mean over `n` units and `draws` draws."""

    value: Array | float
    half_width: float
    n: int
    draws: int
    binomial: bool  # a share of prompts: its spread is at most binomial

    def bounds(self, measurement: Estimate, level: float) -> tuple[Array, Array]:
        """Interval of the paper's own mean: Wilson for shares, else with the spread of our sample."""
        if self.binomial:
            return wilson(self.value, self.n, level)
        half = students(level, measurement.df) * np.sqrt(measurement.variance(self.n, self.draws))
        return self.value - half, self.value + half


def difference(measurement: Estimate, paper: PrintedReference, level: float) -> tuple[Array, Array]:
    """Interval of ours - paper, recovered from the two intervals (Newcombe's method; exact for normal means).

    Ours is a safe one: with Wilson's alone one share in ten is refuted wrongly below 24 prompts."""
    low, high = measurement.safe_bounds(level)
    paper_low, paper_high = paper.bounds(measurement, level)
    gap = measurement.mean - paper.value
    down = np.hypot(measurement.mean - low, paper_high - paper.value)
    up = np.hypot(high - measurement.mean, paper.value - paper_low)
    return gap - down - paper.half_width, gap + up + paper.half_width


def value_outcomes(measurement: Estimate, paper: PrintedReference, margin: float, level: float = 0.05) -> Outcomes:
    """The rule, for any number of experiments at once."""
    low, high = difference(measurement, paper, 1 - 2 * level)
    within = (low >= -margin) & (high <= margin)
    return decided(
        within, p_differs(measurement, paper, margin, level) < level, enough=measurement.units >= FEWEST_UNITS
    )


def p_differs(measurement: Estimate, paper: PrintedReference, margin: float, level: float) -> Array:
    """p-value of "the difference before rounding is within +-margin"."""
    low, high = difference(measurement, paper, 1 - 2 * level)
    gap, rounding = measurement.mean - paper.value, paper.half_width
    down, up = gap - low - rounding, high - gap - rounding
    return p_outside(gap, margin + rounding, down, up, freedom(measurement), level)


def value(
    values: npt.ArrayLike,
    paper: PublishedNumber,
    *,
    unit: Unit = "prompts",
    margin: float | None = None,
    paper_n: int | None = None,
    paper_draws: int | None = None,
    level: float = 0.05,
) -> Verdict:
    """Judge a sample against a printed number.

    Booleans are hits, judged as a proportion. `margin`, `paper_n` and `paper_draws` replace values that the record
    lacks, or states differently from the published procedure; `level` is the error rate allowed on either side.
    """
    sample = np.asarray(values)
    if not np.isfinite(sample).all():
        return invalid("value", "finite", nonfinite_reason(sample))
    margin = _margin(paper, margin)
    reference = _reference(paper, unit, paper_n, paper_draws)
    bounded = paper.proportion and unit == "prompts"
    measurement = estimate(sample, unit=unit, support=(0.0, 1.0) if bounded else None)
    outcome = single_outcome(value_outcomes(measurement, reference, margin, level))
    low, high = difference(measurement, reference, 1 - 2 * level)
    needed = None
    if outcome == "INCONCLUSIVE":
        needed = needed_units(lambda resized: value_outcomes(resized, reference, margin, level), measurement)
    verdict = Verdict(
        "value",
        outcome,
        _reason(outcome, float(measurement.mean), paper, (float(low), float(high)), margin, needed),
        measured=float(measurement.mean),
        low=finite_or_none(paper.value + float(low)),
        high=finite_or_none(paper.value + float(high)),
        margin=margin,
        n=int(measurement.n),
        needed_n=needed,
        p_value=float(p_differs(measurement, reference, margin, level)) if measurement.units >= FEWEST_UNITS else None,
        against=paper.value,
        confidence=1 - 2 * level,
        sample=per_unit(sample),
    )
    return with_quantities(verdict, paper.kind, {"measured": sample})


def value_unidentified(candidates: Mapping[str, Verdict]) -> Verdict:
    """The verdict on a printed number whose condition the paper does not identify, from those on all candidates.

    REPLICATED if one of the candidates is, else INCONCLUSIVE and `unidentified`: the number may belong to a condition
    that was not run, so it cannot fail. `part` names the candidate whose numbers the verdict has. Judge the candidates
    at `level = 0.05 / len(candidates)`, so that their joint error rate stays at 5 %.
    """
    if not candidates:
        raise ValueError("no candidates; pass the value verdict of every condition that the number may belong to")
    agreeing = [name for name, verdict in candidates.items() if verdict.outcome == "REPLICATED"]
    judged = {name: verdict for name, verdict in candidates.items() if verdict.judged}
    if not judged:
        return next(iter(candidates.values()))
    if agreeing:
        return _verdict_of_candidate(agreeing[0], candidates, f"it agrees with {', '.join(agreeing)}")
    nearest = min(judged, key=lambda name: -(judged[name].p_value or 0.0))
    reason = f"it agrees with none of {', '.join(judged)}; the nearest is {nearest}"
    verdict = _verdict_of_candidate(nearest, judged, reason)
    return replace(verdict, outcome="INCONCLUSIVE", unidentified=True, needed_n=None)


def _verdict_of_candidate(name: str, candidates: Mapping[str, Verdict], reason: str) -> Verdict:
    """The verdict on one candidate, as the verdict on all of them."""
    chosen = candidates[name]
    reason = f"the paper does not say which number this is: {reason}"
    return replace(chosen, reason=reason, part=(name, *chosen.part), p_value=None)


def _margin(paper: PublishedNumber, margin: float | None) -> float:
    chosen = paper.margin if margin is None else margin
    if chosen is None:
        raise ValueError(
            f"{paper.id} is a {paper.kind}, which is quoted and never judged; no margin is declared for it"
        )
    check_margin(paper.id, chosen)
    return chosen


def _reference(paper: PublishedNumber, unit: Unit, n: int | None, draws: int | None) -> PrintedReference:
    n, draws = n or paper.n, draws or paper.draws
    prompts = n if unit in ("prompts", "nested") else draws
    missing = "draws" if unit == "nested" and draws is None else unit if prompts is None else None
    if missing or prompts is None:
        option = "paper_n" if missing == "prompts" else "paper_draws"
        raise ValueError(f"{paper.id}: the paper's number of {missing} is not on record; pass {option}=")
    return PrintedReference(paper.value, paper.half_width, prompts, draws or 1, paper.proportion and unit == "prompts")


def _reason(
    outcome: Outcome,
    measurement: float,
    paper: PublishedNumber,
    gap: tuple[float, float],
    margin: float,
    needed: int | None,
) -> str:
    numbers = f"measured {measurement:.4g}, {paper.provenance} {paper.value:.4g}"
    numbers = f"{numbers}, difference in [{gap[0]:.3g}, {gap[1]:.3g}]"
    if outcome == "REPLICATED":
        return f"{numbers}, within the margin of {margin:.3g}"
    if outcome == "NOT REPLICATED":
        return f"{numbers}, surely outside the margin of {margin:.3g}"
    if needed is None:
        return f"{numbers}, margin {margin:.3g}: open for any N (the paper's N, its rounding, or the draws limit it)"
    return f"{numbers}, margin {margin:.3g}: about N = {needed} would decide"
