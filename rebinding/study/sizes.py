"""The numbers of prompts and of random directions on which a model is judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rebinding.paper.claim import Claim
from rebinding.planted import Declared
from rebinding.planted.truth import directions_of

PAPER = {"able": 300, "able_wide": 300, "paths": 100, "evaluated": 300, "pruned": 50}
"""Default numbers of prompts on the paper's models."""
PLANTED = {"able": 60, "able_wide": 40, "paths": 36, "evaluated": 72, "pruned": 36}
"""The same on planted models. `evaluated` is the largest number of any row: one run serves all rows."""
DIRECTIONS, FEWEST_DIRECTIONS = 100, 24
PLANTED_SETS = 6
"""The largest number of sets of directions on planted models; fewer than five decide nothing."""
DRAWS, PLANTED_DRAWS = 200, 48
"""Random directions; 48 suffice to decide that nine in ten have a smaller effect, where all but one have."""


class Sizes(Protocol):
    """The sizes of everything that a study requests."""

    def of_claim(self, claim: Claim) -> int:
        """How many prompts a claim is judged on."""
        ...

    def of(self, kind: str) -> int:
        """The number of prompts of evidence that serves several claims; `kind` is a key of `PAPER`."""
        ...

    def sets(self, most: int) -> int:
        """The number of measured sets of directions, where a procedure has `most`."""
        ...

    def directions(self, sets: int) -> int:
        """The number of prompts over which a slot's directions are averaged, in each of `sets` sets."""
        ...

    @property
    def draws(self) -> int:
        """The number of random directions."""
        ...


@dataclass(frozen=True)
class UsualSizes:
    """The sizes of the claim, the paper or the plant; `samples` replaces all numbers of prompts, if given."""

    plant: Declared | None
    samples: int | None

    def of_claim(self, claim: Claim) -> int:
        truth = None if self.plant is None else self.plant.truth.get(claim.id)
        return self.samples or (truth.n if truth else claim.n)

    def of(self, kind: str) -> int:
        return self.samples or (PLANTED if self.plant else PAPER)[kind]

    def sets(self, most: int) -> int:
        return min(most, PLANTED_SETS) if self.plant else most

    def directions(self, sets: int) -> int:
        """On a plant, the effect of words averages out over all sets together."""
        if self.plant is None:
            return self.samples or DIRECTIONS
        return max(FEWEST_DIRECTIONS, directions_of(self.plant.mechanism) // sets)

    @property
    def draws(self) -> int:
        return PLANTED_DRAWS if self.plant else DRAWS
