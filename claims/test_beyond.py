"""Beyond the paper: what a reviewer would ask of its circuit."""

from __future__ import annotations

from functools import partial

from claims.rows import judges
from claims.shifts import more, over
from rebinding.experiments.binding.summary import shift
from rebinding.experiments.circuit.summary import of_circuit, of_random
from rebinding.paper.claim import Claim
from rebinding.paper.rows.beyond import INTERCHANGE, NECESSARY
from rebinding.study.binding import exchanged
from rebinding.study.knockout import knocked_out, others_left
from rebinding.study.study import Study
from rebinding.verdicts import Verdict, guarded, ordering
from rebinding.verdicts.sentences import Part, all_of, any_of


@judges(INTERCHANGE)
def test_real_queries_or_keys_do_what_means_do_not(claim: Claim, study: Study) -> Verdict:
    means, margin = study.binding(claim), claim.margin()
    real = study.ask(claim, partial(exchanged, way=study.procedure(claim).binding))
    parts: dict[str, Part] = {}
    for condition, said in (("q", "queries"), ("k_both", "keys")):
        theirs, ours = shift(means, condition, "dR"), shift(real, condition, "dR")
        beyond = {"turn": more(ours, margin), "turn more than means": over(ours, theirs, margin)}
        parts[said] = partial(all_of, claim.kind, beyond)
    return any_of(claim.kind, parts)


@judges(NECESSARY)
def test_the_model_needs_the_circuit(claim: Claim, study: Study) -> Verdict:
    others = others_left(study.circuit, study.layers, study.all_heads)
    return guarded(claim.kind, [others], lambda: worse_than_without_others(claim, study))


def worse_than_without_others(claim: Claim, study: Study) -> Verdict:
    evidence = study.ask(claim, knocked_out)
    without = of_circuit(evidence, "circuit", "hit").astype(float)
    return ordering(of_random(evidence, "hit"), without, unit=claim.unit, margin=claim.margin())
