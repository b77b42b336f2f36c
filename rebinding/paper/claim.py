"""A claim as data: a sentence, its source, its rule, and notes for the reader."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from rebinding.paper.numbers import ALIASES, Quantity, contradictions, tolerance
from rebinding.paper.procedure import ProcedureName

Rule: TypeAlias = Literal["value", "effect", "ordering", "no-effect", "set", "report"]
"""The rule that decides a claim."""
Unit: TypeAlias = Literal["prompts", "circuit draws", "direction draws", "nested"]
"""The independent draws that are resampled."""
SectionName: TypeAlias = Literal["tracing", "five", "circuit", "roles", "binding", "robust", "other"]
"""The section of a claim: 3 (with three boxes, or five), 4.1, 4.2, 5, beyond the paper, or none."""
Metric: TypeAlias = Quantity | Literal["probability", "contribution"]
EVERY: tuple[str, ...] = ALIASES
"""The four models of the paper."""

LEVEL = 0.05
"""The error rate of a verdict."""
PROBABILITY = 0.01
"""The paper prunes at one per cent; a head that changes the answer's probability by less has no effect."""
CONTRIBUTION = 0.01
"""Logits. The released code prunes a head if the answer's logit falls by less without it; a link counts from there."""
SHORT = "replicated in less than 80 % of simulated runs in which the paper is right"
AGAINST = "text against own table"


@dataclass(frozen=True)
class Claim:
    """A sentence, its source, and its rule.

    `metrics` are the kinds of quantity that are measured, which determine the margins; `statistic` is computed from
    them, and `where` says over which layers, heads and tokens. `unit` is resampled, `n` is the number of units for the
    paper's models (a planted model's truth table has its own). The circuit must have heads in every group that the
    claim `needs`. `models` are those for which the paper makes the claim: on others the verdict is a property that is
    reported. `procedure` names the conventions: the paper's own, or the best that we know.
    """

    id: str
    statement: str
    source: str
    kind: Rule
    metrics: tuple[Metric, ...]
    statistic: str
    where: str
    unit: Unit = "prompts"
    n: int = 300
    group: str | None = None
    """The group of the circuit that the claim is about."""
    condition: str | None = None
    """The case, where one test judges several: an intervention, a kind of story, an outcome."""
    printed: str | None = None
    """The id of the printed number that the claim compares with, if it is a single one."""
    needs: tuple[str, ...] = ()
    models: tuple[str, ...] = EVERY
    boxes: int = 3
    procedure: ProcedureName = "published"
    level: float = LEVEL
    """The error rate of its verdict: lower where it is one of several that are judged together."""
    long: bool = False
    """It needs path patching under every convention that the published may have used, or the search over all heads and
    tokens. In thirty layers that takes longer than all other rows together: judged last, skipped by `not long`."""
    sentence: str = ""
    """Shared by both rows of a sentence: the id of the published row, or of the only one."""
    section: SectionName = "other"
    headline: int | None = None
    """The number of the headline claim that rests on it (`rebinding.paper.headlines`)."""
    reads: tuple[str, ...] = ()
    """The targets of section 4.2, or the rows of the table of section 5, that its rule reads. Such a claim is judged
    under every candidate for what the paper leaves open about them (`Procedure.candidates`)."""
    own_task: bool = False
    """It is about another task than box stories: the gates on stories say nothing about it."""

    def __post_init__(self) -> None:
        if not self.sentence:
            object.__setattr__(self, "sentence", self.id)

    def margin(self, metric: Metric | None = None) -> float:
        """The smallest change that counts, of the given metric, or of the claim's first one."""
        metric = metric or self.metrics[0]
        if metric not in self.metrics:
            declared = ", ".join(self.metrics)
            raise ValueError(
                f"{self.id}: its test asks for the margin of {metric}, but it declares {declared}; add {metric} to"
                " metrics="
            )
        return margin_of(metric)

    @property
    def margins(self) -> Mapping[str, float]:
        """The margin of every declared metric."""
        return MappingProxyType({metric: margin_of(metric) for metric in self.metrics})

    def controlled(self, **changes: Any) -> Claim:
        """The same sentence under the controlled procedure. The paper did not run this, so it asserts it of no model.
        It has a single convention, so it is not long."""
        fields = {"id": f"{self.id}.controlled", "models": (), "long": False, **changes}
        return replace(self, procedure="controlled", **fields)

    def with_five_boxes(self) -> Claim:
        """The same row of the tracing section in stories of five boxes with a distracting swap. It belongs to no
        headline claim."""
        id, sentence = (name.replace(".", ".five_boxes.", 1) for name in (self.id, self.sentence))
        statement = f"With five boxes and a further swap: {self.statement[0].lower()}{self.statement[1:]}"
        source = f"{self.source}; appendix, beyond three boxes"
        return replace(
            self, source=source, id=id, sentence=sentence, statement=statement, section="five", boxes=5, headline=None
        )


def margin_of(metric: Metric) -> float:
    """The declared margin of a kind of quantity."""
    if metric == "probability":
        return PROBABILITY
    if metric == "contribution":
        return CONTRIBUTION
    margin = tolerance(metric).absolute
    if margin is None:
        raise ValueError(f"{metric} is quoted and never judged: no margin is declared for it")
    return margin


@cache
def undecided() -> Mapping[tuple[str, str], str]:
    """Rows that would seldom replicate at their N even if the paper were true: the reason, by row and model. They are
    judged and not asserted."""
    rows = tomllib.loads(files("rebinding.paper").joinpath("undecided.toml").read_text(encoding="utf-8"))["rows"]
    reasons = [((claim, model), row["why"]) for row in rows for claim in row["claims"] for model in row["models"]]
    by_row = dict(reasons)
    if len(by_row) < len(reasons):
        counts = Counter(key for key, _ in reasons)
        duplicates = sorted(key for key, count in counts.items() if count > 1)
        raise ValueError(f"undecided.toml gives two reasons for {', '.join(' on '.join(key) for key in duplicates)}")
    return MappingProxyType(by_row)


def is_asserted(claim: Claim, *names: str | None) -> bool:
    """Whether the row must replicate on a model of these names: the paper says its sentence of it, and our N is large
    enough."""
    return any(name in claim.models and (claim.id, name) not in undecided() for name in names)


def label(id: str, sentence: str, model: str | None) -> str | None:
    """A note on a row for one of the paper's models: the printed numbers contradict its sentence, or the row would
    seldom replicate. The first is about the sentence, under both procedures; the second, from simulated evidence, is
    about the row."""
    against = [entry.why for entry in contradictions() if (entry.claim, entry.model) == (sentence, model)]
    short = undecided().get((id, model or ""))
    notes = [f"{AGAINST}: {'; '.join(against)}"] if against else []
    notes += [f"{SHORT}: {short}"] if short else []
    return "; ".join(notes) or None
