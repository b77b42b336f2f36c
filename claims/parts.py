"""Parts of sentences that several tests of claims say."""

from __future__ import annotations

from functools import partial

from rebinding.evidence import Evidence
from rebinding.experiments.circuit.summary import of_circuit, of_random
from rebinding.paper.claim import Claim
from rebinding.verdicts import ordering
from rebinding.verdicts.sentences import Part


def over_random(claim: Claim, evidence: Evidence) -> Part:
    """Hits of the circuit against those of random ones on the same prompts."""
    mine = of_circuit(evidence, "circuit", "hit").astype(float)
    return partial(ordering, mine, of_random(evidence, "hit"), unit="nested", margin=claim.margin("accuracy"))
