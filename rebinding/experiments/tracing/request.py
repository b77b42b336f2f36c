"""What can be asked of section 3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rebinding.evidence import Kind, OnPrompts
from rebinding.evidence.request import Facet
from rebinding.experiments.tracing.kinds import DIAGNOSTIC, TRACING
from rebinding.world.designs import ModeName


@dataclass(frozen=True)
class TracingMap(OnPrompts):
    """The residual interchange of one mode, at every pair's own tokens that have one of these roles.

    `prompts` is the pool of pairs: the first `wanted` of them whose original is answered correctly are traced.
    """

    KIND: ClassVar[Kind] = TRACING
    mode: ModeName
    roles: tuple[str, ...]
    wanted: int

    @property
    def n(self) -> int:
        return self.wanted

    @property
    def facets(self) -> Mapping[str, Facet]:
        return {"mode": self.mode, **self.prompts.facets, "roles": len(self.roles)}


@dataclass(frozen=True)
class ReadoutDiagnostic(OnPrompts):
    """Windows of layers patched at the end of the swap and at the readout, for every question."""

    KIND: ClassVar[Kind] = DIAGNOSTIC
