"""What can be asked of section 4.2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from rebinding.evidence import Kind, OnPrompts
from rebinding.evidence.request import Facet
from rebinding.experiments.roles.interchange import Mode
from rebinding.experiments.roles.kinds import ROLES
from rebinding.paper.circuit import Head
from rebinding.paper.numbers import Group

Counterfactual: TypeAlias = Literal["pointer", "content_control"]
"""Which pairs: the answer's place changes, or the object in it."""


@dataclass(frozen=True)
class Interchange(OnPrompts):
    """Every group of a circuit gets the attention that it has in a counterfactual."""

    KIND: ClassVar[Kind] = ROLES
    counterfactual: Counterfactual
    mode: Mode
    groups: tuple[tuple[Group, tuple[Head, ...]], ...]

    @property
    def edits(self) -> tuple[str, ...] | None:
        """In a content control nothing that points looks elsewhere, so nothing need move; in a pointer pair it must."""
        return None if self.counterfactual == "content_control" else self.KIND.edits

    @property
    def facets(self) -> Mapping[str, Facet]:
        return {"pairs": self.counterfactual, "mode": self.mode, **self.prompts.facets}
