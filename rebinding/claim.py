"""A claim as data, and what became of it on one model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from rebinding.published import ALIASES, Kind, tolerance
from rebinding.verdicts import Unit, Verdict
from rebinding.verdicts.outcome import Kind as Rule

Metric: TypeAlias = Kind | Literal["probability"]
SCHEMA = 1
EVERY: tuple[str, ...] = ALIASES
FIVE = "five_boxes."

PROBABILITY = 0.01
"""The paper prunes at one per cent; a head that moves the answer's probability by less counts as doing nothing."""


@dataclass(frozen=True)
class Claim:
    """A sentence, where it stands, and how it is judged.

    `metrics` are the kinds of quantity that are measured, and with them the margins; `statistic` and `where` say what
    of them, over which layers, heads and tokens; `unit` is what is resampled, `n` how many of them the paper's models
    are asked for (a planted model's truth table has its own). `groups` must have heads in the circuit. `asserted`
    names the models for which the paper makes the claim: on others the verdict is a property that is reported.
    """

    id: str
    says: str
    source: str
    kind: Rule
    metrics: tuple[Metric, ...]
    statistic: str
    where: str
    unit: Unit = "prompts"
    n: int = 300
    groups: tuple[str, ...] = ()
    asserted: tuple[str, ...] = EVERY
    boxes: int = 3

    def margin(self, metric: Metric | None = None) -> float:
        """The smallest change that counts, of the claim's first metric or the one named."""
        wanted = metric or self.metrics[0]
        if wanted not in self.metrics:
            raise ValueError(f"{self.id} declares {', '.join(self.metrics)}, and its test asks for {wanted}")
        return margin_of(wanted)

    @property
    def margins(self) -> Mapping[str, float]:
        """The margin of every declared metric."""
        return MappingProxyType({metric: margin_of(metric) for metric in self.metrics})

    def with_five_boxes(self) -> Claim:
        """The same row of the section on tracing in stories of five boxes with a distracting swap."""
        section, _, name = self.id.partition(".")
        says = f"With five boxes and a further swap: {self.says[0].lower()}{self.says[1:]}"
        return replace(self, id=f"{section}.{FIVE}{name}", says=says, asserted=("gemma2-9b",), boxes=5)


def margin_of(metric: Metric) -> float:
    """The declared margin of a kind of quantity."""
    if metric == "probability":
        return PROBABILITY
    found = tolerance(metric).absolute
    if found is None:
        raise ValueError(f"{metric} is quoted and never judged: no margin is declared for it")
    return found


@dataclass(frozen=True)
class Judgement:
    """One line of `claims.json`. `expected` is the planted truth, or REPLICATED where the paper asserts the claim."""

    id: str
    statement: str
    source: str
    model: str
    kind: str
    verdict: str
    expected: str | None
    paper: float | None
    measured: float | None
    low: float | None
    high: float | None
    margin: float | None
    n: int | None
    needed_n: int | None
    gate: str | None
    p_value: float | None
    unit: str
    metrics: str
    statistic: str
    where: str
    design: str
    circuit: str
    reason: str
    evidence: str = ""
    """The names of the evidence that it rests on, parted by commas."""
    against: float | None = None
    """What the estimate is held against: the printed value, 0, or chance."""
    because: str | None = None
    """Why a plant must get the verdict that is expected of it."""
    command: str = ""
    """What judges this claim alone on this model again."""
    sample: tuple[float, ...] = ()
    """The numbers behind the estimate, one per unit; they are kept in a file of their own."""

    @property
    def as_expected(self) -> bool:
        """Whether this is what had to come out; a row that is only reported must be valid."""
        if self.expected is None:
            return self.verdict != "INVALID"
        told = f"{self.verdict} ({self.gate})" if self.gate else self.verdict
        return told == self.expected

    @property
    def open(self) -> bool:
        """Neither for nor against: more examples, or better ones, are needed."""
        return self.verdict == "INCONCLUSIVE"

    def plain(self) -> dict[str, Any]:
        """As JSON, without the sample."""
        return {name: value for name, value in asdict(self).items() if name != "sample"}


def judgement(
    claim: Claim,
    verdict: Verdict,
    *,
    model: str,
    expected: str | None,
    paper: float | None,
    design: str,
    circuit: str,
    evidence: Iterable[str] = (),
    because: str | None = None,
    command: str = "",
) -> Judgement:
    """A verdict with all that one must know to read it."""
    named = ("measured", "low", "high", "against", "n", "needed_n", "gate", "p_value", "sample")
    numbers = {name: getattr(verdict, name) for name in named}
    return Judgement(
        id=claim.id,
        statement=claim.says,
        source=claim.source,
        model=model,
        kind=claim.kind,
        verdict=verdict.outcome,
        expected=expected,
        paper=paper,
        margin=verdict.margin,
        unit=claim.unit,
        metrics=", ".join(claim.metrics),
        statistic=claim.statistic,
        where=claim.where,
        design=design,
        circuit=circuit,
        reason=verdict.reason,
        evidence=", ".join(evidence),
        because=because,
        command=command,
        **numbers,
    )
