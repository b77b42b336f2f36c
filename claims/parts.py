"""Parts of sentences that several tests of claims say."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TypeVar

from rebinding.evidence import Evidence
from rebinding.experiments.circuit.summary import of_circuit, of_random
from rebinding.paper.claim import Claim
from rebinding.verdicts import Verdict, ordering, value_unidentified
from rebinding.verdicts.effects import Support
from rebinding.verdicts.sentences import LEVEL, Part

SHARES: Support = (-1.0, 1.0)
"""What the difference of two shares cannot leave."""


def over_random(claim: Claim, evidence: Evidence) -> Part:
    """Hits of the circuit against those of random ones on the same prompts."""
    mine = of_circuit(evidence, "circuit", "hit").astype(float)
    return partial(ordering, mine, of_random(evidence, "hit"), unit="nested", margin=claim.margin("accuracy"))


Name = TypeVar("Name", bound=str)


def of_candidates(judge: Callable[[Name, float], Verdict], candidates: Collection[Name]) -> Verdict:
    """The verdict under every convention that it may have been; with more than one of them, unidentified."""
    if len(candidates) == 1:
        return judge(next(iter(candidates)), LEVEL)
    return value_unidentified({name: judge(name, LEVEL / len(candidates)) for name in candidates})
