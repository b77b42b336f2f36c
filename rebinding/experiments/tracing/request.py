"""What can be asked of section 3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rebinding.evidence import Kind, PromptSet, Request
from rebinding.evidence.request import Facet
from rebinding.experiments.tracing.kinds import DIAGNOSTIC, TRACING
from rebinding.world.designs import ModeName


@dataclass(frozen=True)
class TracingMap(Request):
    """The residual interchange of one mode, at every pair's own tokens that have one of these roles.

    `pairs` is the pool: the first `prompts` of them whose original is answered correctly are traced.
    """

    KIND: ClassVar[Kind] = TRACING
    pairs: PromptSet
    mode: ModeName
    roles: tuple[str, ...]
    prompts: int

    @property
    def n(self) -> int:
        return self.prompts

    @property
    def facets(self) -> Mapping[str, Facet]:
        return {"mode": self.mode, **self.pairs.facets, "roles": len(self.roles)}


@dataclass(frozen=True)
class ReadoutDiagnostic(Request):
    """Windows of layers patched at the end of the swap and at the readout, for every question."""

    KIND: ClassVar[Kind] = DIAGNOSTIC
    pairs: PromptSet

    @property
    def n(self) -> int:
        return len(self.pairs.ids)

    @property
    def facets(self) -> Mapping[str, Facet]:
        return self.pairs.facets
