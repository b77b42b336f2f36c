"""Beyond the paper: what a reviewer would ask of its circuit."""

from __future__ import annotations

from claims.rows import judges
from rebinding.experiments.circuit.random_circuits import heads_to_spare
from rebinding.experiments.circuit.summary import of_circuit, of_random
from rebinding.paper.claim import Claim
from rebinding.paper.rows.beyond import NECESSARY
from rebinding.study.knockout import knocked_out
from rebinding.study.study import Study
from rebinding.verdicts import Verdict, guarded, ordering, requirement


@judges(NECESSARY)
def test_the_model_needs_the_circuit(claim: Claim, study: Study) -> Verdict:
    spare = requirement(
        "heads_to_spare",
        heads_to_spare(study.circuit, study.layers, study.all_heads // study.layers),
        "a layer has too few heads beside the circuit's for random sets of as many",
    )
    return guarded(claim.kind, [spare], lambda: worse_than_without_others(claim, study))


def worse_than_without_others(claim: Claim, study: Study) -> Verdict:
    evidence = study.ask(claim, knocked_out)
    without = of_circuit(evidence, "circuit", "hit").astype(float)
    return ordering(of_random(evidence, "hit"), without, unit=claim.unit, margin=claim.margin())
