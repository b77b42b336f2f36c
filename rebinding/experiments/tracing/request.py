"""What can be asked of section 3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rebinding.evidence import Kind, OnPrompts
from rebinding.evidence.request import Facet
from rebinding.experiments.tracing.kinds import DIAGNOSTIC, EVERY_TOKEN, MENTION, TRACING
from rebinding.world.answers import AnswerRule
from rebinding.world.designs import ModeName


@dataclass(frozen=True)
class OfMode(OnPrompts):
    """Residual interchange in the pairs of one mode.

    `prompts` is the pool of pairs: the first `wanted` of them whose original is answered correctly are traced. Answers
    are told by `rule`.
    """

    mode: ModeName
    rule: AnswerRule
    wanted: int

    @property
    def n(self) -> int:
        return self.wanted

    @property
    def facets(self) -> Mapping[str, Facet]:
        return {"mode": self.mode, **self.prompts.facets}


@dataclass(frozen=True)
class TracingMap(OfMode):
    """One token and layer at a time, at every pair's own tokens that have one of these roles; None: at every token."""

    KIND: ClassVar[Kind] = TRACING
    roles: tuple[str, ...] | None

    @property
    def facets(self) -> Mapping[str, Facet]:
        return {**super().facets, "roles": EVERY_TOKEN if self.roles is None else len(self.roles)}


@dataclass(frozen=True)
class FirstMention(OfMode):
    """A label in the swap, patched alone and together with one in the context."""

    KIND: ClassVar[Kind] = MENTION
    context: str
    swap: str


@dataclass(frozen=True)
class ReadoutDiagnostic(OnPrompts):
    """Windows of layers patched at the end of the swap and at the readout, for every question."""

    KIND: ClassVar[Kind] = DIAGNOSTIC
    rule: AnswerRule
