"""What became of a claim on one model: a line of `claims.json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rebinding.paper.claim import Claim
from rebinding.verdicts.outcome import Verdict


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
    finding: str | None
    p_value: float | None
    unit: str
    metrics: str
    statistic: str
    where: str
    design: str
    circuit: str
    reason: str
    evidence: tuple[str, ...] = ()
    """The labels of the requests that it rests on."""
    against: float | None = None
    """What the estimate is held against: the printed value, 0, or chance."""
    because: str | None = None
    """Why a plant must get the verdict that is expected of it."""
    procedure: str = "published"
    """The conventions under which it was judged."""
    sentence: str = ""
    """The id without the procedure."""
    floor: float | None = None
    """What doing nothing in another way does to logits at most, where that was held against what counts."""
    label: str | None = None
    """What is to be known of the sentence itself, such as that the paper's own table says otherwise."""
    command: str = ""
    """What judges this claim alone on this model again."""
    sample: tuple[float, ...] = ()
    """The numbers behind the estimate, one per unit; they are kept in a file of their own."""

    @property
    def as_expected(self) -> bool:
        """Whether this is what had to come out; a row that is only reported must be valid."""
        if self.expected is None:
            return self.verdict != "INVALID"
        return self.told == self.expected

    @property
    def told(self) -> str:
        """The verdict with what it came to: the gate that failed, or what was found."""
        more = self.gate or self.finding
        return f"{self.verdict} ({more})" if more else self.verdict

    @property
    def open(self) -> bool:
        """Neither for nor against: more examples, or better ones, are needed."""
        return self.verdict == "INCONCLUSIVE"

    @classmethod
    def read(cls, fields: Mapping[str, Any], sample: Iterable[float] = ()) -> Judgement:
        """What `plain` wrote, after a journey as JSON."""
        return cls(**{**fields, "evidence": tuple(fields["evidence"])}, sample=tuple(sample))

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
    procedure: str = "published",
    label: str | None = None,
    floor: float | None = None,
) -> Judgement:
    """A verdict with all that one must know to read it."""
    named = ("measured", "low", "high", "against", "n", "needed_n", "gate", "finding", "p_value", "sample")
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
        evidence=tuple(evidence),
        because=because,
        procedure=procedure,
        sentence=claim.sentence,
        label=label,
        command=command,
        floor=floor,
        **numbers,
    )
