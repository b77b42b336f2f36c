"""The judgement of a claim on one model: a line of `claims.json`.

The standing of a sentence is its verdicts under both procedures: robust, artifact, hidden or refuted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from rebinding.paper.claim import Claim, SectionName
from rebinding.verdicts.outcome import ConventionVerdict, Outcome, Quantity, Verdict
from rebinding.verdicts.quantities import format_interval, format_mean, format_number, format_quantity

COPIED = (
    "measured", "low", "high", "against", "n", "needed_n",
    "gate", "finding", "part", "unidentified", "p_value", "confidence", "quantities",
    "conventions", "sample",
)  # fmt: skip
"""Fields of a verdict that a judgement has under the same name."""
RUN = "the run as a whole"
"""The name under which judgements about several models stand beside those of each model."""


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
    """The labels of the requests behind it."""
    against: float | None = None
    """What the estimate is compared with: the printed value, 0, or chance."""
    because: str | None = None
    """Why a planted model must get the expected verdict."""
    procedure: str = "published"
    """The conventions under which it was judged."""
    sentence: str = ""
    """Shared by both rows of a sentence: the id of the published row, or of the only one."""
    part: tuple[str, ...] = ()
    """The part that decided a sentence of several parts; for nested parts the path, outermost first."""
    unidentified: bool = False
    """Whether it is open because the paper does not identify its convention, and it agrees with none of several."""
    place: int = 0
    """The sentence's position in the order of the paper; both procedures share it."""
    floor: float | None = None
    """The noise floor in logits, where the gate compared it with the smallest effect that counts."""
    label: str | None = None
    """A note on the sentence itself, such as that the paper's own table says otherwise."""
    command: str = ""
    """The command that judges this claim alone on this model."""
    section: SectionName = "other"
    headline: int | None = None
    """The number of the headline claim that rests on it."""
    confidence: float | None = None
    """The confidence of the interval, of two one-sided bounds at the level of the rule."""
    quantities: tuple[Quantity, ...] = ()
    """The numbers that a reader expects, such as the three accuracies of which a rule judges one difference."""
    conventions: tuple[ConventionVerdict, ...] = ()
    """What each convention shows of a signature, where a sentence over several models needs it."""
    sample: tuple[float, ...] = ()
    """The numbers behind the estimate, one per unit; stored in a separate file."""

    @property
    def as_expected(self) -> bool:
        """Whether the verdict is the expected one; a row that is only reported must be valid."""
        if self.expected is None:
            return self.verdict != "INVALID"
        return self.detailed_verdict == self.expected

    @property
    def detailed_verdict(self) -> str:
        """The verdict with its detail: the gate that failed, or the finding of a report."""
        detail = self.gate or self.finding
        return f"{self.verdict} ({detail})" if detail else self.verdict

    @property
    def is_open(self) -> bool:
        """Neither for nor against: more examples, or better ones, are needed."""
        return self.verdict == "INCONCLUSIVE"

    @property
    def provenance(self) -> str:
        """Where the number comes from that a value row compares with."""
        return "declared" if self.because is not None else "printed"

    @property
    def difference(self) -> tuple[float, float, float] | None:
        """Of a value row, the measured number less the other one, with the interval that was judged, in which both are
        uncertain; None of any other row."""
        numbers = (self.measured, self.low, self.high)
        if self.kind != "value" or self.against is None or None in numbers:
            return None
        measured, low, high = (number - self.against for number in numbers if number is not None)
        return measured, low, high

    def as_verdict(self) -> Verdict:
        """The fields that a sentence over several judgements needs."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in (*COPIED, "reason", "margin")}
        return Verdict(**fields | {"kind": self.kind, "outcome": self.verdict})

    @classmethod
    def read(cls, fields: Mapping[str, Any], sample: Iterable[float] = ()) -> Judgement:
        """Read what `plain` wrote, from JSON."""
        lists: dict[str, Any] = {"evidence": tuple(fields["evidence"]), "part": tuple(fields.get("part", ()))}
        lists["conventions"] = tuple(ConventionVerdict(**entry) for entry in fields.get("conventions", ()))
        lists["quantities"] = tuple(Quantity(**entry) for entry in fields.get("quantities", ()))
        return cls(**{**fields, **lists}, sample=tuple(sample))

    def plain(self) -> dict[str, Any]:
        """As JSON, without the sample."""
        fields = {name: value for name, value in asdict(self).items() if name != "sample"}
        lists = {name: [entry._asdict() for entry in getattr(self, name)] for name in ("quantities", "conventions")}
        return fields | lists


def join_names(names: Iterable[str]) -> str:
    """Every name once, in order of appearance."""
    return ", ".join(dict.fromkeys(names))


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
    place: int = 0,
) -> Judgement:
    """A verdict with everything needed to read it."""
    numbers = {name: getattr(verdict, name) for name in COPIED}
    return Judgement(
        id=claim.id,
        statement=claim.statement,
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
        place=place,
        label=label,
        command=command,
        section=claim.section,
        headline=claim.headline,
        floor=floor,
        **numbers,
    )


def describe_numbers(row: Judgement) -> str:
    """The numbers of a judgement in one line: `quantity value unit [low, high]` for each quantity, or its estimate;
    then what it is compared with, the margin, and the number of units."""
    parts = [format_quantity(quantity) for quantity in row.quantities]
    if not parts and row.measured is not None:
        parts = [f"{format_number(row.measured)} {format_interval(row.low, row.high)}".rstrip()]
    if row.kind == "value" and row.against is not None:
        parts.append(f"{row.provenance} {format_number(row.against)}")
        if row.difference is not None:
            parts.append(f"difference {format_interval(*row.difference[1:])}")
    parts += [f"margin ±{format_number(row.margin)}"] if row.margin else []
    parts += [f"{row.n} {COUNTED.get(row.unit, row.unit)}"] if row.n is not None else []
    return ", ".join(parts)


def describe_means(row: Judgement) -> str:
    """The means of its quantities alone; of a row without any, its estimate with the interval."""
    if row.quantities:
        return ", ".join(map(format_mean, row.quantities))
    return (
        "" if row.measured is None else f"{format_number(row.measured)} {format_interval(row.low, row.high)}".rstrip()
    )


COUNTED = {"nested": "prompts"}
"""The word for the units of N: where draws are crossed with prompts, N counts prompts."""
Standing: TypeAlias = Literal["robust", "artifact", "hidden", "refuted"]
NAMES: Mapping[tuple[Outcome, Outcome], Standing] = {
    ("REPLICATED", "REPLICATED"): "robust",
    ("REPLICATED", "NOT REPLICATED"): "artifact",
    ("NOT REPLICATED", "REPLICATED"): "hidden",
    ("NOT REPLICATED", "NOT REPLICATED"): "refuted",
}
"""By the verdict under the published procedure, then under the controlled one."""


def standing(published: str, controlled: str) -> Standing | None:
    """The name of a combination of verdicts; None while either is open or could not be judged."""
    return next((name for verdicts, name in NAMES.items() if verdicts == (published, controlled)), None)


@dataclass(frozen=True)
class Sentence:
    """A sentence with its judgement on one model under each procedure."""

    id: str
    published: Judgement | None
    controlled: Judgement | None

    @property
    def is_judged_twice(self) -> bool:
        """Whether it has both rows; some sentences have only one."""
        return self.published is not None and self.controlled is not None

    @property
    def standing(self) -> Standing | None:
        """Robust, artifact, hidden or refuted; None unless both rows are decided."""
        if self.published is None or self.controlled is None:
            return None
        return standing(self.published.verdict, self.controlled.verdict)


def sentences(rows: Iterable[Judgement]) -> tuple[Sentence, ...]:
    """The sentences of one model with their rows, in order of appearance."""
    by_id: dict[str, dict[bool, Judgement]] = {}
    for row in rows:
        id = row.sentence or row.id
        controlled = row.id != id or row.procedure == "controlled"  # some sentences have only a controlled row
        by_id.setdefault(id, {})[controlled] = row
    return tuple(Sentence(id, pair.get(False), pair.get(True)) for id, pair in by_id.items())


def in_words(judged_twice: Iterable[Sentence]) -> str:
    """'Of 21 sentences ...: 12 robust, 1 artifact (binding.key_dominance), ...'; robust ones as a count only."""
    all_sentences = list(judged_twice)
    parts = []
    for name in NAMES.values():
        ids = [sentence.id for sentence in all_sentences if sentence.standing == name]
        if ids:
            parts.append(f"{len(ids)} {name}" if name == "robust" else f"{len(ids)} {name} ({', '.join(ids)})")
    undecided = sum(sentence.standing is None for sentence in all_sentences)
    parts += [f"{undecided} open or not judged"] if undecided else []
    return f"Of {len(all_sentences)} sentences judged as published and controlled: {', '.join(parts)}."
