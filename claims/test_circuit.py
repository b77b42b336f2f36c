"""Section 4.1: a small circuit does the task, and its groups form a chain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from claims.parts import of_candidates, over_random
from claims.rows import judges
from rebinding.evidence import Evidence
from rebinding.experiments.circuit.summary import (
    RESAMPLES,
    Array,
    fallen,
    left_by_order,
    lost,
    of_circuit,
    of_random,
    reselected,
    stands_alone,
    without_group,
    without_head,
    worth,
)
from rebinding.paper.circuit import Head
from rebinding.paper.claim import Claim
from rebinding.paper.rows.circuit import (
    AGAIN,
    AGAIN_CONTROLLED,
    AS_STATED,
    BASELINE,
    BEATS,
    BEATS_BY_LAYER,
    COMPACT,
    D_BY_Q,
    E_EMPTY,
    E_PRESENT,
    E_PRIME,
    FULL_ACCURACY,
    LINKS,
    LINKS_IN_LOGITS,
    LOGITS,
    MARGINS,
    MINIMAL,
    NEAR_FULL,
    NO_FLOOR,
    RECOVERS,
    THREE_TO_TEN,
)
from rebinding.study.contributions import contributed
from rebinding.study.study import Study
from rebinding.verdicts import (
    Verdict,
    effect,
    emptiness,
    group_present,
    guarded,
    invalid,
    no_effect,
    not_applicable,
    overlap,
    relative_changes,
    value,
)
from rebinding.verdicts.sentences import Part, all_of, any_of, most_of
from rebinding.verdicts.sets import Null

CHANCE = 1 / 3
MOST = 0.9
LOW, HIGH = 0.03, 0.10
PER_CENT = 0.01


def held_against(claim: Claim, study: Study, id: str, values: Any, **options: Any) -> Verdict:
    paper = study.printed(id)
    if paper is None:
        return not_applicable(claim.kind, "the paper prints no number for this model")
    return value(values, paper, **options)


@judges(FULL_ACCURACY)
def test_the_full_model_does_the_task(claim: Claim, study: Study) -> Verdict:
    return held_against(claim, study, "accuracy.full", of_circuit(study.ablated(claim), "full", "hit"))


@judges(RECOVERS)
def test_the_circuit_recovers_it(claim: Claim, study: Study) -> Verdict:
    return held_against(claim, study, "accuracy.circuit", of_circuit(study.ablated(claim), "circuit", "hit"))


@judges(BASELINE)
def test_random_circuits_are_as_printed(claim: Claim, study: Study) -> Verdict:
    hits = of_random(study.ablated(claim), "hit")  # (draw, prompt)
    return held_against(claim, study, "accuracy.random", hits, unit=claim.unit)


@judges(NEAR_FULL)
def test_the_circuit_is_nearly_as_good_as_the_model(claim: Claim, study: Study) -> Verdict:
    evidence = study.ablated(claim)
    mine, whole = (of_circuit(evidence, which, "hit").astype(float) for which in ("circuit", "full"))
    return effect(mine - MOST * whole, margin=0.0, support=(-MOST, 1.0))


@judges(BEATS, BEATS_BY_LAYER)
def test_the_circuit_beats_random_ones(claim: Claim, study: Study) -> Verdict:
    return over_random(claim, study.ablated(claim))(level=claim.level)


@judges(NO_FLOOR)
def test_the_circuit_is_no_floor(claim: Claim, study: Study) -> Verdict:
    evidence = study.ablated(claim)
    missed = ~of_circuit(evidence, "full", "hit")
    return all_of(
        claim.kind,
        {
            "over random circuits": over_random(claim, evidence),
            "the model misses": partial(effect, missed, above=1 - MOST, margin=0.0),
        },
    )


@judges(MARGINS, LOGITS)
def test_margins_and_logits_are_as_printed(claim: Claim, study: Study) -> Verdict:
    evidence = study.ablated(claim)
    (quantity,) = claim.metrics
    measure = "margin" if quantity == "margin" else "label_logit"
    samples = {
        "full": of_circuit(evidence, "full", measure),
        "circuit": of_circuit(evidence, "circuit", measure),
        "random": of_random(evidence, measure),  # (draw, prompt)
    }
    parts: dict[str, Part] = {}
    for name, values in samples.items():
        paper = study.printed(f"{quantity}.{name}")
        if paper is not None:
            parts[name] = partial(value, values, paper, unit="nested" if name == "random" else "prompts")
    return all_of(claim.kind, parts) if parts else not_applicable(claim.kind, "the paper prints none for this model")


@judges(E_PRIME)
def test_the_answer_survives_without_e(claim: Claim, study: Study) -> Verdict:
    if not had_e(study):
        return not_applicable(
            claim.kind, "the circuit had no group E, so there is nothing for the stream to stand in for"
        )
    hits = without_group(study.ablated(claim), "E", "hit")
    stream = study.carried_on(claim)
    return all_of(
        claim.kind,
        {
            "answers without E": partial(effect, hits, above=CHANCE, margin=claim.margin("accuracy")),
            "another stream": partial(effect, fallen(stream), margin=claim.margin("margin")),
        },
    )


def had_e(study: Study) -> bool:
    """Whether there was a group E before pruning. In the paper there always was: stage E keeps ten heads."""
    if study.circuit_from != "discovered":
        return study.circuit_from == "published" or bool(study.circuit.group("E"))
    return any(found.circuit.group("E") for found in study.discoveries(AGAIN_CONTROLLED["E"]).values())


@judges(COMPACT)
def test_the_circuit_is_small(claim: Claim, study: Study) -> Verdict:
    paper = study.printed("heads.share")
    if paper is None:
        return not_applicable(claim.kind, "the paper prints no number for this model")
    found = shares(claim, study)
    return of_candidates(
        lambda name, level: value(found[name], paper, unit=claim.unit, paper_draws=1, level=level), found
    )


@judges(THREE_TO_TEN)
def test_the_circuit_is_three_to_ten_per_cent(claim: Claim, study: Study) -> Verdict:
    found, middle, half = shares(claim, study), (LOW + HIGH) / 2, (HIGH - LOW) / 2
    return of_candidates(
        lambda name, level: no_effect(found[name], about=middle, margin=half, unit=claim.unit, level=level), found
    )


def shares(claim: Claim, study: Study) -> dict[str, Array]:
    """Which share of all heads each walk of pruning leaves, for every discovery that it may have been."""
    return {
        name: np.array([one.pairs / study.all_heads for one in left_by_order(evidence)])
        for name, evidence in study.prunings(claim).items()
    }


@judges(E_EMPTY, E_PRESENT)
def test_what_pruning_leaves_of_e(claim: Claim, study: Study) -> Verdict:
    pruned = study.prunings(claim)

    def judged(name: str, level: float) -> Verdict:
        kept = [one.group("E") for one in left_by_order(pruned[name])]
        return emptiness(kept[0], empty=claim is E_EMPTY, selections=kept[1:], level=level)

    return of_candidates(judged, pruned)


@judges(MINIMAL)
def test_no_kept_head_can_go(claim: Claim, study: Study) -> Verdict:
    heads, pruning = study.pruned_circuit.heads, next(iter(study.prunings(claim).values()))
    if not stands_alone(pruning) or not heads:
        return invalid(
            claim.kind, "circuit_left", "what was discovered does not do the task alone, so no head is needed"
        )
    evidence, counts = study.one_by_one(claim), study.way(claim).prune_step / 2
    whole = of_circuit(evidence, "circuit", "margin")
    lost = {one: whole - without_head(evidence, one, "margin") for one in heads}
    parts = {f"{one.group} {one.layer}.{one.head}": partial(effect, fall, margin=counts) for one, fall in lost.items()}
    return most_of(claim.kind, parts, MOST)


@judges(AS_STATED)
def test_every_head_contributes_a_per_cent(claim: Claim, study: Study) -> Verdict:
    if study.found_here:
        return not_applicable(claim.kind, "the circuit is our own, and was pruned by another rule")
    found = worth(study.ask(claim, partial(contributed, way=study.way(claim))), PER_CENT)
    heads = {head: partial(any_of, claim.kind, contributing(beside)) for head, beside in found.items()}
    return all_of(claim.kind, heads)


def contributing(beside: Mapping[str, Array]) -> dict[str, Part]:
    """The head surely contributes more than a per cent, beside each of the sets that are gone."""
    support = (-1 - PER_CENT, 1.0)
    return {f"beside {gone}": partial(effect, values, margin=0.0, support=support) for gone, values in beside.items()}


@judges(*AGAIN.values(), *AGAIN_CONTROLLED.values())
def test_the_published_heads_are_found_again(claim: Claim, study: Study) -> Verdict:
    group = claim.sentence[-1]
    if study.found_here:
        return not_applicable(claim.kind, "the circuit is our own; there is no other to compare it with")
    published = study.circuit.group(group)
    if not published and study.circuit_from == "published":
        return not_applicable(claim.kind, f"the paper's group {group} is empty on this model")
    found = study.discoveries(claim)
    return guarded(
        claim.kind,
        [group_present(group, published)],
        lambda: of_candidates(lambda name, level: found_again(claim, study, name, level), found),
    )


def found_again(claim: Claim, study: Study, name: str, level: float) -> Verdict:
    """A group of ours against the published one, and against our own selection on resampled prompts."""
    found, group, way = study.discoveries(claim)[name], claim.sentence[-1], study.way(claim)
    ours, theirs = found.circuit.group(group), study.circuit.group(group)
    evidence = found.evidence.get(group)
    taken = found.circuit.group("B") if group == "A" else ()
    again = [[]] * RESAMPLES if evidence is None else reselected(evidence, way.score, way.select, exclude=taken)
    if not ours:
        return emptiness(ours, empty=False, selections=again, level=level)
    null: Null = "layers" if way.random == "role_and_layer" else "universe"
    told: dict[str, Any] = {"universe": study.all_heads, "null": null, "layers": study.layers}
    return overlap(ours, theirs, selections=again, level=level, **told)


@judges(*LINKS.values(), *LINKS_IN_LOGITS.values())
def test_every_link_of_the_chain(claim: Claim, study: Study) -> Verdict:
    stage = next(name for name, one in LINKS.items() if one.id == claim.sentence)
    heads = study.circuit.group(stage)
    if not heads:
        return not_applicable(claim.kind, f"group {stage} of this circuit is empty, so nobody is there to send")
    evidence = study.link(claim, stage)
    if claim.procedure == "controlled":
        return effect(lost(evidence, heads, "logit") * len(heads), margin=claim.margin())
    return falls(claim, evidence, heads)


@judges(D_BY_Q)
def test_d_acts_on_the_queries_of_c(claim: Claim, study: Study) -> Verdict:
    return falls(claim, study.link(claim, "D literal"), study.circuit.group("D"))


def falls(claim: Claim, evidence: Evidence, heads: Sequence[Head]) -> Verdict:
    """The answer's probability falls, relatively; where it is next to 0 or 1 that says nothing."""
    before = evidence.rows.groupby("prompt")["p_orig"].first()
    return guarded(
        claim.kind,
        [relative_changes(before, claim.margin())],
        lambda: effect(lost(evidence, heads, "probability"), margin=claim.margin()),
    )
