"""Beyond the paper: what a reviewer would ask of its circuit."""

from __future__ import annotations

from claims.rows import judges
from rebinding.experiments.circuit.summary import of_circuit, of_random
from rebinding.paper.claim import Claim
from rebinding.paper.rows.beyond import NECESSARY
from rebinding.study.knockout import knocked_out, others_left
from rebinding.study.study import Study
from rebinding.verdicts import Verdict, guarded, ordering


@judges(NECESSARY)
def test_the_model_needs_the_circuit(claim: Claim, study: Study) -> Verdict:
    others = others_left(study.circuit, study.layers, study.all_heads)
    return guarded(claim.kind, [others], lambda: worse_than_without_others(claim, study))


def worse_than_without_others(claim: Claim, study: Study) -> Verdict:
    evidence = study.ask(claim, knocked_out)
    without = of_circuit(evidence, "circuit", "hit").astype(float)
    return ordering(of_random(evidence, "hit"), without, unit=claim.unit, margin=claim.margin())
