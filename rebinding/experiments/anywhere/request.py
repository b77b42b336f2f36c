"""What can be asked of a search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rebinding.evidence import Kind, OnPrompts, PromptSet
from rebinding.evidence.request import Facet
from rebinding.experiments.anywhere.kinds import CROSSINGS


@dataclass(frozen=True)
class Settings:
    """What is kept, and what is not looked at.

    A sender is kept if its effect surely (at error rate `alpha` over all senders of a step) differs from 0 and is at
    least `share` of the whole: the score that is lost if everything is as in the noise prompt. `listens` leaves out
    places to which no receiver gives that much attention in any prompt of a block; 0 leaves out none. `exhaustive` runs
    rows that a guess rules out. `block` prompts run at once.
    """

    share: float = 0.02
    alpha: float = 0.01
    listens: float = 0.01
    exhaustive: bool = False
    block: int = 12

    def __post_init__(self) -> None:
        if not (0 < self.share < 1 and 0 < self.alpha < 1 and 0 <= self.listens < 1 and self.block >= 1):
            raise ValueError(f"{self}: share and alpha lie between 0 and 1, listens from 0 to 1, block is at least 1")


@dataclass(frozen=True)
class Crossings(OnPrompts):
    """By which tokens information goes on from part to part, among the nodes that a search finds on other prompts."""

    KIND: ClassVar[Kind] = CROSSINGS
    searched: PromptSet
    how: Settings

    @property
    def facets(self) -> Mapping[str, Facet]:
        return {"share": f"{self.how.share:g}", "searched": len(self.searched.ids), **self.prompts.facets}
