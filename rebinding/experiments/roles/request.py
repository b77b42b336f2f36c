"""What can be asked of section 4.2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from rebinding.evidence import Kind, OnPrompts
from rebinding.evidence.request import Facet
from rebinding.experiments.roles.interchange import Future, Mode
from rebinding.experiments.roles.kinds import ROLES
from rebinding.paper.circuit import Head
from rebinding.paper.numbers import Group
from rebinding.world.answers import AnswerRule

Counterfactual: TypeAlias = Literal["pointer", "content_control"]
"""Which pairs: the answer's place changes, or the object in it."""


@dataclass(frozen=True)
class Interchange(OnPrompts):
    """Every group of a circuit gets the attention that it has in a counterfactual."""

    KIND: ClassVar[Kind] = ROLES
    counterfactual: Counterfactual
    mode: Mode
    future: Future
    answers: AnswerRule
    groups: tuple[tuple[Group, tuple[Head, ...]], ...]

    @property
    def edits(self) -> tuple[str, ...] | None:
        """Outputs, or patterns at a group's own token, must move in a pointer pair. In a content control nothing that
        points looks elsewhere; and a model whose heads at the readout look at the same place whatever is asked keeps
        their patterns, which is a finding and no edit that did nothing."""
        return None if self.counterfactual == "content_control" or self.mode == "paper" else self.KIND.edits

    @property
    def direction(self) -> str:
        """How the answer's slot moves: `code`, `text`, or `both`."""
        return self.prompts.pairing[1]

    @property
    def facets(self) -> Mapping[str, Facet]:
        told = {"pairs": self.counterfactual, "mode": self.mode, "direction": self.direction}
        return {**told, **self.prompts.facets}
