"""How many prompts, and how many random directions, a model is judged on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rebinding.paper.claim import Claim
from rebinding.planted import Declared
from rebinding.planted.truth import directions_of

PAPER = {"able": 300, "able_wide": 300, "paths": 100, "evaluated": 300, "pruned": 50}
"""Prompts on the paper's models, where a claim does not say."""
PLANTED = {"able": 60, "able_wide": 40, "paths": 36, "evaluated": 72, "pruned": 36}
"""The same on planted models. `evaluated` is what the row that needs most of them says: one run serves all rows."""
DIRECTIONS, FEWEST_DIRECTIONS = 100, 24
PLANTED_SETS = 6
"""Sets of directions on planted models, at most: five are the fewest that decide anything."""
DRAWS, PLANTED_DRAWS = 200, 40
"""Random directions; 40 decide whether nine in ten do less, where all of them do."""


class Sizes(Protocol):
    """The sizes of everything that a study requests."""

    def of_claim(self, claim: Claim) -> int:
        """How many prompts a claim is judged on."""
        ...

    def of(self, what: str) -> int:
        """How many prompts evidence has that serves several claims; the names are those of `PAPER`."""
        ...

    def sets(self, most: int) -> int:
        """How many sets of directions are measured, where a procedure has `most`."""
        ...

    def directions(self, sets: int) -> int:
        """How many prompts a slot's directions are averaged over, in each of so many sets."""
        ...

    @property
    def draws(self) -> int:
        """How many random directions are drawn."""
        ...


@dataclass(frozen=True)
class UsualSizes:
    """What a claim, the paper or a planted model says; or `samples` of all prompts, if a run gives that."""

    plant: Declared | None
    samples: int | None

    def of_claim(self, claim: Claim) -> int:
        truth = None if self.plant is None else self.plant.truth.get(claim.id)
        return self.samples or (truth.n if truth else claim.n)

    def of(self, what: str) -> int:
        return self.samples or (PLANTED if self.plant else PAPER)[what]

    def sets(self, most: int) -> int:
        return min(most, PLANTED_SETS) if self.plant else most

    def directions(self, sets: int) -> int:
        """What the words leave in the means of a plant may average out over all of its sets."""
        if self.plant is None:
            return self.samples or DIRECTIONS
        return max(FEWEST_DIRECTIONS, directions_of(self.plant.mechanism) // sets)

    @property
    def draws(self) -> int:
        return PLANTED_DRAWS if self.plant else DRAWS
