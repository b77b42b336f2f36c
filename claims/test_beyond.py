"""Beyond the paper: what a reviewer would ask of its circuit."""

from __future__ import annotations

from functools import partial
from typing import Any

from claims.parts import SHARES, over_random
from claims.rows import judges
from claims.shifts import more, over
from rebinding.experiments.anywhere.summary import led_by_expected
from rebinding.experiments.binding.summary import shift
from rebinding.experiments.circuit.summary import RESAMPLES, of_circuit, of_random, reselected
from rebinding.paper.circuit import Head
from rebinding.paper.claim import Claim
from rebinding.paper.rows.beyond import INTERCHANGE, MANY, NARRATIVE, NECESSARY, PLACES, REFILL, ROUTE, STATIC
from rebinding.study.anywhere import crossed
from rebinding.study.binding import exchanged
from rebinding.study.knockout import knocked_out, others_left
from rebinding.study.static import about_bystander, about_refilled, beside_refilled, static_circuit, without_swap
from rebinding.study.study import Study
from rebinding.verdicts import Verdict, above_chance, effect, emptiness, guarded, ordering, overlap
from rebinding.verdicts.sentences import Part, all_of, any_of

CHANCE = 1 / 3
SEVEN = 7
LATER = "swap to all that is later"
CARRIED = {"E": "context to swap", "D": "swap to question", "C": "question to readout"}
"""What groups carry, as the evidence calls it."""
SHARED = "ABC"
"""The groups of which static tracking has its like: at the readout, and at the question's box."""


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
    return ordering(of_random(evidence, "hit"), without, unit=claim.unit, support=SHARES, margin=claim.margin())


@judges(ROUTE)
def test_the_swap_is_left_by_its_labels(claim: Claim, study: Study) -> Verdict:
    return effect(led_by_expected(study.ask(claim, crossed), LATER), margin=claim.margin())


@judges(PLACES)
def test_what_carries_on_stands_at_labels(claim: Claim, study: Study) -> Verdict:
    evidence = study.ask(claim, crossed)
    parts: dict[str, Part] = {
        f"{group}, {name}": partial(effect, led_by_expected(evidence, name), margin=claim.margin())
        for group, name in CARRIED.items()
    }
    return all_of(claim.kind, parts)


@judges(STATIC)
def test_the_circuit_serves_what_was_not_swapped(claim: Claim, study: Study) -> Verdict:
    found = {"without a swap": study.ask(claim, without_swap), "about a bystander": study.ask(claim, about_bystander)}
    parts: dict[str, Part] = {"heads of static tracking": partial(shared_with_static, claim, study)}
    for where, evidence in found.items():
        more_than_random = of_circuit(evidence, "circuit", "margin"), of_random(evidence, "margin")
        hits = of_circuit(evidence, "circuit", "hit")
        parts[f"{where}, margin"] = partial(ordering, *more_than_random, unit=claim.unit, margin=claim.margin("margin"))
        parts[f"{where}, answers"] = partial(effect, hits, above=CHANCE, margin=claim.margin("accuracy"))
    able = [above_chance(of_circuit(evidence, "full", "hit"), CHANCE) for evidence in found.values()]
    return guarded(claim.kind, able, lambda: all_of(claim.kind, parts))


def shared_with_static(claim: Claim, study: Study, *, level: float) -> Verdict:
    """The heads of the groups that static tracking has too, with those that are found where nothing is swapped."""
    way = study.way(claim)
    found = static_circuit(partial(study.ask, claim), way)
    ours, theirs = ({head for group in SHARED for head in one.group(group)} for one in (found.circuit, study.circuit))
    again: list[set[Head]] = [set() for _ in range(RESAMPLES)]
    for group in (group for group in SHARED if group in found.evidence):
        taken = found.circuit.group("B") if group == "A" else ()
        selections = reselected(found.evidence[group], way.score, way.select, exclude=taken)
        again = [known | set(more) for known, more in zip(again, selections, strict=True)]
    if not ours:
        return emptiness((), empty=False, selections=[tuple(one) for one in again], level=level)
    told = {"universe": study.all_heads, "layers": study.layers}
    return overlap(ours, theirs, selections=again, null="layers", level=level, **told)


@judges(REFILL)
def test_the_circuit_serves_what_is_put_and_removed(claim: Claim, study: Study) -> Verdict:
    asked = {"the box that is refilled": about_refilled, "another box": beside_refilled}
    found = {name: study.ask(claim, make) for name, make in asked.items()}
    able = [above_chance(of_circuit(evidence, "full", "hit"), CHANCE) for evidence in found.values()]
    parts = {name: over_random(claim, evidence) for name, evidence in found.items()}
    return guarded(claim.kind, able, lambda: all_of(claim.kind, parts))


@judges(MANY, NARRATIVE)
def test_the_circuit_serves_other_stories(claim: Claim, study: Study) -> Verdict:
    told: dict[str, Any] = {"boxes": SEVEN} if claim is MANY else {"name": "counterbalanced", "narrative": True}
    able = study.able_at(study.n(claim), **told)
    return guarded(
        claim.kind, [able], lambda: over_random(claim, study.ablated_elsewhere(claim, **told))(level=claim.level)
    )
