"""Section 4.1: a small circuit does the task, and its groups form a chain."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from claims.parts import over_random
from claims.rows import judges
from rebinding.evidence import Evidence
from rebinding.experiments.circuit.summary import (
    left_by_order,
    lost,
    of_circuit,
    of_random,
    reselected,
    without_group,
    without_head,
)
from rebinding.paper.claim import Claim
from rebinding.paper.rows.circuit import (
    AGAIN,
    BASELINE,
    BEATS,
    COMPACT,
    E_EMPTY,
    E_PRESENT,
    E_PRIME,
    FULL_ACCURACY,
    LINKS,
    LOGITS,
    MARGINS,
    MINIMAL,
    NO_FLOOR,
    NULL,
    RECOVERS,
)
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
    ordering,
    overlap,
    value,
)
from rebinding.verdicts.sentences import Part, all_of

CHANCE = 1 / 3


def accuracies(claim: Claim, study: Study) -> Evidence:
    return study.ablated(study.n(claim))


def held_against(claim: Claim, study: Study, id: str, values: Any, **options: Any) -> Verdict:
    paper = study.printed(id)
    if paper is None:
        return not_applicable(claim.kind, "the paper prints no number for this model")
    return value(values, paper, **options)


@judges(FULL_ACCURACY)
def test_the_full_model_does_the_task(claim: Claim, study: Study) -> Verdict:
    return held_against(claim, study, "accuracy.full", of_circuit(accuracies(claim, study), "full", "hit"))


@judges(RECOVERS)
def test_the_circuit_recovers_it(claim: Claim, study: Study) -> Verdict:
    return held_against(claim, study, "accuracy.circuit", of_circuit(accuracies(claim, study), "circuit", "hit"))


@judges(BASELINE)
def test_random_circuits_are_as_printed(claim: Claim, study: Study) -> Verdict:
    by_draw = of_random(accuracies(claim, study), "hit").mean(axis=1)
    return held_against(claim, study, "accuracy.random", by_draw, unit=claim.unit)


@judges(BEATS)
def test_the_circuit_beats_random_ones(claim: Claim, study: Study) -> Verdict:
    return over_random(claim, accuracies(claim, study))(level=0.05)


@judges(NO_FLOOR)
def test_the_circuit_is_no_floor(claim: Claim, study: Study) -> Verdict:
    evidence = accuracies(claim, study)
    mine, whole = of_circuit(evidence, "circuit", "margin"), of_circuit(evidence, "full", "margin")
    return all_of(
        claim.kind,
        {
            "over random circuits": over_random(claim, evidence),
            "margin over the model's": partial(ordering, mine, whole, margin=claim.margin("margin")),
        },
    )


@judges(MARGINS, LOGITS)
def test_margins_and_logits_are_as_printed(claim: Claim, study: Study) -> Verdict:
    evidence = accuracies(claim, study)
    quantity = claim.metrics[0]
    measure = "margin" if quantity == "margin" else "label_logit"
    samples = {
        "full": of_circuit(evidence, "full", measure),
        "circuit": of_circuit(evidence, "circuit", measure),
        "random": of_random(evidence, measure).mean(axis=1),
    }
    parts: dict[str, Part] = {}
    for name, values in samples.items():
        paper = study.printed(f"{quantity}.{name}")
        if paper is not None:
            parts[name] = partial(value, values, paper, unit="circuit draws" if name == "random" else "prompts")
    return all_of(claim.kind, parts) if parts else not_applicable(claim.kind, "the paper prints none for this model")


@judges(E_PRIME)
def test_the_answer_survives_without_e(claim: Claim, study: Study) -> Verdict:
    hits = without_group(accuracies(claim, study), "E", "hit")
    return effect(hits, above=CHANCE, margin=claim.margin())


@judges(COMPACT)
def test_the_circuit_is_small(claim: Claim, study: Study) -> Verdict:
    shares = np.array([one.pairs / study.all_heads for one in left_by_order(study.pruning())])
    paper = study.printed("heads.share")
    if paper is None:
        return not_applicable(claim.kind, "the paper prints no number for this model")
    return value(shares, paper, unit=claim.unit, paper_draws=1)


@judges(E_EMPTY, E_PRESENT)
def test_what_pruning_leaves_of_e(claim: Claim, study: Study) -> Verdict:
    kept = [one.group("E") for one in left_by_order(study.pruning())]
    return emptiness(kept[0], empty=claim is E_EMPTY, selections=kept[1:])


@judges(MINIMAL)
def test_no_kept_head_can_go(claim: Claim, study: Study) -> Verdict:
    heads = study.pruned_circuit.heads
    if not heads:
        return invalid(claim.kind, "circuit_left", "pruning leaves no head of what was discovered")
    evidence = study.one_by_one(study.n(claim))
    whole = of_circuit(evidence, "circuit", "label_logit")
    return all_of(
        claim.kind,
        {
            f"{head.group} {head.layer}.{head.head}": partial(
                effect,
                whole - without_head(evidence, head, "label_logit"),
                margin=claim.margin(),
            )
            for head in heads
        },
    )


@judges(*AGAIN.values())
def test_the_published_heads_are_found_again(claim: Claim, study: Study) -> Verdict:
    group = claim.id[-1]
    if study.circuit_from == "discovered":
        return not_applicable(claim.kind, "the circuit is our own; there is no other to compare it with")
    published = group_present(group, study.circuit.group(group))
    return guarded(claim.kind, [published], lambda: found_again(study, group))


def found_again(study: Study, group: str) -> Verdict:
    """A group of ours against the published one, and against our own selection on resampled prompts."""
    found = study.discovery
    ours, theirs = found.circuit.group(group), study.circuit.group(group)
    evidence = found.evidence.get(group)
    again = [[]] * 20 if evidence is None else reselected(evidence)
    if group == "A":
        again = [[head for head in one if head not in found.circuit.group("B")] for one in again]
    if not ours:
        return emptiness(ours, empty=False, selections=again)
    return overlap(ours, theirs, universe=study.all_heads, selections=again)


@judges(*LINKS.values())
def test_every_link_of_the_chain(claim: Claim, study: Study) -> Verdict:
    stage = next(name for name, one in LINKS.items() if one is claim)
    return effect(lost(study.link(stage), study.circuit.group(stage)), margin=claim.margin())


@judges(NULL)
def test_frozen_d_does_not_reach_the_query_of_c(claim: Claim, study: Study) -> Verdict:
    return no_effect(lost(study.link("D literal"), study.circuit.group("D")), margin=claim.margin())
