"""A claim as data: a sentence, where it stands, and how it is judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from rebinding.paper.numbers import ALIASES, Quantity, tolerance
from rebinding.paper.procedure import ProcedureName

Rule: TypeAlias = Literal["value", "effect", "ordering", "no-effect", "set", "report"]
"""How a claim is decided."""
Unit: TypeAlias = Literal["prompts", "circuit draws", "direction draws", "nested"]
"""What was drawn independently, and is resampled."""
Metric: TypeAlias = Quantity | Literal["probability"]
EVERY: tuple[str, ...] = ALIASES
FIVE = "five_boxes."
CONTROLLED = ".controlled"

LEVEL = 0.05
"""How often a verdict may be wrong."""
PROBABILITY = 0.01
"""The paper prunes at one per cent; a head that moves the answer's probability by less counts as doing nothing."""


@dataclass(frozen=True)
class Claim:
    """A sentence, where it stands, and how it is judged.

    `metrics` are the kinds of quantity that are measured, and with them the margins; `statistic` and `where` say what
    of them, over which layers, heads and tokens; `unit` is what is resampled, `n` how many of them the paper's models
    are asked for (a planted model's truth table has its own). `groups` must have heads in the circuit. `asserted`
    names the models for which the paper makes the claim: on others the verdict is a property that is reported.
    `procedure` says under which conventions: the paper's own, or the best that we know.
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
    procedure: ProcedureName = "published"
    level: float = LEVEL
    """How often its verdict may be wrong: less than usual where it is one of several that are judged together."""
    long: bool = False
    """It asks for path patching in each of the ways that the published may have been, or for the search over all heads
    and tokens. In thirty layers that takes longer than all other rows together: judged last, left out by `not long`."""

    @property
    def sentence(self) -> str:
        """The id without the procedure: what the two rows of a sentence have in common."""
        return self.id.removesuffix(CONTROLLED)

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
        """The same sentence under the controlled procedure. The paper did not run this, so it asserts nothing here;
        and it is run in one way, whatever the published may have been, so it is not long."""
        told = {"id": f"{self.id}{CONTROLLED}", "asserted": (), "long": False, **changes}
        return replace(self, procedure="controlled", **told)

    def with_five_boxes(self, **changes: Any) -> Claim:
        """The same row of the section on tracing in stories of five boxes with a distracting swap."""
        section, _, name = self.id.partition(".")
        says = f"With five boxes and a further swap: {self.says[0].lower()}{self.says[1:]}"
        told = {"id": f"{section}.{FIVE}{name}", "says": says, "boxes": 5, **changes}
        return replace(self, **told)


def margin_of(metric: Metric) -> float:
    """The declared margin of a kind of quantity."""
    if metric == "probability":
        return PROBABILITY
    found = tolerance(metric).absolute
    if found is None:
        raise ValueError(f"{metric} is quoted and never judged: no margin is declared for it")
    return found
