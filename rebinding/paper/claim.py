"""A claim as data: a sentence, where it stands, how it is judged, and what is to be known of it before it is read."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from rebinding.paper.numbers import ALIASES, Quantity, contradictions, tolerance
from rebinding.paper.procedure import ProcedureName

Rule: TypeAlias = Literal["value", "effect", "ordering", "no-effect", "set", "report"]
"""How a claim is decided."""
Unit: TypeAlias = Literal["prompts", "circuit draws", "direction draws", "nested"]
"""What was drawn independently, and is resampled."""
SectionName: TypeAlias = Literal["tracing", "five", "circuit", "roles", "binding", "robust", "other"]
"""Where a claim stands: in sections 3 (with three boxes, or five), 4.1, 4.2 and 5, beyond the paper, or nowhere."""
Metric: TypeAlias = Quantity | Literal["probability", "contribution"]
EVERY: tuple[str, ...] = ALIASES
"""The four models of the paper."""

LEVEL = 0.05
"""How often a verdict may be wrong."""
PROBABILITY = 0.01
"""The paper prunes at one per cent; a head that moves the answer's probability by less counts as doing nothing."""
CONTRIBUTION = 0.01
"""Logits. The released code prunes a head without which the answer's logit falls by less; a link counts from there."""
SHORT = "replicated in less than 80 % of simulated runs in which the paper is right"
AGAINST = "text against own table"


@dataclass(frozen=True)
class Claim:
    """A sentence, where it stands, and how it is judged.

    `metrics` are the kinds of quantity that are measured, and with them the margins; `statistic` and `where` say what
    of them, over which layers, heads and tokens; `unit` is what is resampled, `n` how many of them the paper's models
    are asked for (a planted model's truth table has its own). The circuit must have heads in every group that the claim
    `needs`. `models` are those for which the paper makes the claim: on others the verdict is a property that is
    reported. `procedure` says under which conventions: the paper's own, or the best that we know.
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
    """The group of the circuit that it is about."""
    condition: str | None = None
    """Which of the cases that one test judges: an intervention, a kind of story, an outcome."""
    printed: str | None = None
    """The id of the printed number that it compares with, where it is a single one."""
    needs: tuple[str, ...] = ()
    models: tuple[str, ...] = EVERY
    boxes: int = 3
    procedure: ProcedureName = "published"
    level: float = LEVEL
    """How often its verdict may be wrong: less than usual where it is one of several that are judged together."""
    long: bool = False
    """It asks for path patching in each of the ways that the published may have been, or for the search over all heads
    and tokens. In thirty layers that takes longer than all other rows together: judged last, left out by `not long`."""
    sentence: str = ""
    """What the two rows of a sentence have in common: the id of the published one, or of the only one."""
    section: SectionName = "other"
    headline: int | None = None
    """The number of the headline claim that rests on it (`rebinding.paper.headlines`)."""

    def __post_init__(self) -> None:
        if not self.sentence:
            object.__setattr__(self, "sentence", self.id)

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

    def controlled(self, **changes: Any) -> Claim:
        """The same sentence under the controlled procedure. The paper did not run this, so it is claimed of no model;
        and it is run in one way, whatever the published may have been, so it is not long."""
        fields = {"id": f"{self.id}.controlled", "models": (), "long": False, **changes}
        return replace(self, procedure="controlled", **fields)

    def with_five_boxes(self, **changes: Any) -> Claim:
        """The same row of the section on tracing in stories of five boxes with a distracting swap. No headline claim
        rests on these."""
        first, _, rest = self.id.partition(".")
        id = f"{first}.five_boxes.{rest}"
        statement = f"With five boxes and a further swap: {self.statement[0].lower()}{self.statement[1:]}"
        fields = {"id": id, "sentence": id, "statement": statement, "section": "five", "boxes": 5, **changes}
        return replace(self, headline=None, **fields)


def margin_of(metric: Metric) -> float:
    """The declared margin of a kind of quantity."""
    if metric == "probability":
        return PROBABILITY
    if metric == "contribution":
        return CONTRIBUTION
    found = tolerance(metric).absolute
    if found is None:
        raise ValueError(f"{metric} is quoted and never judged: no margin is declared for it")
    return found


@cache
def undecided() -> Mapping[tuple[str, str], str]:
    """Rows that even a true paper would seldom replicate, as printed and at their N: the reason, by row and model. They
    are judged and not asserted."""
    rows = tomllib.loads(files("rebinding.paper").joinpath("undecided.toml").read_text(encoding="utf-8"))["rows"]
    told = [((claim, model), one["why"]) for one in rows for claim in one["claims"] for model in one["models"]]
    found = dict(told)
    if len(found) < len(told):
        twice = sorted({key for key, _ in told if sum(key == other for other, _ in told) > 1})
        raise ValueError(f"undecided.toml gives two reasons for {', '.join(' on '.join(key) for key in twice)}")
    return MappingProxyType(found)


def is_asserted(claim: Claim, model: str | None) -> bool:
    """Whether the row has to replicate on a model: the paper says its sentence there, and our N can tell."""
    return model in claim.models and (claim.id, model) not in undecided()


def label(id: str, sentence: str, model: str | None) -> str | None:
    """What is to be known of a row before it is read, on one of the paper's models: that the printed numbers say
    otherwise than its sentence, or that they would seldom be told from others. A sentence is judged by the same numbers
    under both procedures; what simulated evidence says is said of the row."""
    against = [one.why for one in contradictions() if (one.claim, one.model) == (sentence, model)]
    short = undecided().get((id, model or ""))
    found = [f"{AGAINST}: {'; '.join(against)}"] if against else []
    found += [f"{SHORT}: {short}"] if short else []
    return "; ".join(found) or None
