"""Section 4.1: a small circuit does the task, and its groups form a chain."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from claims.rows import judges
from claims.samples import lost, of_circuit, of_random, over_random, reselected
from rebinding.evidence import Evidence
from rebinding.experiments.circuit.discovery import LEAST
from rebinding.paper.claim import Claim
from rebinding.paper.numbers import share_kept
from rebinding.study.circuit import FULL, ORDERS, STAGES, left
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
ROW: dict[str, Any] = {"source": "section 4.1, circuit evaluation", "where": "readout; other heads held at their mean"}

FULL_ACCURACY = Claim(
    "circuit.full_model_accuracy",
    "The full model answers this share of the prompts.",
    kind="value",
    metrics=("accuracy",),
    statistic="share of prompts whose answer beats the other objects",
    **ROW,
)
RECOVERS = Claim(
    "circuit.recovers_accuracy",
    "The circuit alone answers this share of the prompts.",
    kind="value",
    metrics=("accuracy",),
    statistic="the same, all other heads ablated",
    **ROW,
)
BASELINE = Claim(
    "circuit.random_baseline",
    "Random circuits of the same size answer this share of the prompts.",
    kind="value",
    metrics=("accuracy",),
    statistic="mean share per draw",
    unit="circuit draws",
    **ROW,
)
BEATS = Claim(
    "circuit.beats_random",
    "The circuit answers more prompts than random circuits of its size.",
    kind="ordering",
    metrics=("accuracy",),
    statistic="difference of hits, draws crossed with prompts",
    unit="nested",
    **ROW,
)
NO_FLOOR = Claim(
    "circuit.not_a_floor",
    "The circuit is better than random ones although the model is weak, and its margin exceeds the model's.",
    kind="ordering",
    metrics=("accuracy", "margin"),
    statistic="difference of hits to random circuits, difference of margins to the full model",
    asserted=("llama3.2-3b",),
    **ROW,
)
MARGINS, LOGITS = (
    Claim(
        f"circuit.{name}",
        f"{said} of full model, circuit and random circuits are the printed ones.",
        kind="value",
        metrics=(metric,),
        statistic=f"mean {metric} over prompts; over draws for the random circuits",
        **ROW,
    )
    for name, said, metric in (
        ("margins", "The answer's margins over the other objects", "margin"),
        ("label_logits", "The answer's logits", "logit"),
    )
)
E_PRIME = Claim(
    "circuit.e_prime",
    "Without the heads of group E the circuit still answers: the means at the context carry the binding.",
    kind="effect",
    metrics=("accuracy",),
    statistic="share of prompts answered without group E, above chance",
    asserted=("gemma2-9b", "llama3.2-3b"),
    n=50,
    **ROW,
)
FOUND: dict[str, Any] = {
    "source": "section 4.1, circuit evaluation",
    "where": "the circuit that we discovered",
    "n": 50,
}
COMPACT = Claim(
    "circuit.compact",
    "Pruning leaves this share of the heads.",
    kind="value",
    metrics=("share",),
    statistic=f"share of head-position pairs left, over {ORDERS} orders of the walk",
    unit="circuit draws",
    **FOUND,
)
E_EMPTY, E_PRESENT = (
    Claim(
        f"circuit.group_e_{name}",
        f"Pruning leaves {said} of group E.",
        kind="set",
        metrics=("share",),
        statistic=f"the heads left, over {ORDERS} orders of the walk",
        unit="circuit draws",
        asserted=asserted,
        **FOUND,
    )
    for name, said, asserted in (
        ("empty", "nothing", ("gemma2-9b", "llama3.2-3b")),
        ("present", "heads", ("gemma3-12b", "llama3.1-8b")),
    )
)
MINIMAL = Claim(
    "circuit.minimal",
    "No head that pruning keeps can go without a loss.",
    kind="effect",
    metrics=("probability",),
    statistic="fall of the answer's logit without the head, on prompts that pruning did not see; every head",
    **(FOUND | {"where": "the discovered circuit after pruning, all other heads held at their mean"}),
)
AGAIN = {
    group: Claim(
        f"circuit.heads_found_again.{group}",
        f"Path patching finds heads of the published group {group} again, beyond chance.",
        "the table of heads of the four models",
        "set",
        ("share",),
        "overlap of the selected heads with the published group, beside our own selection on resampled prompts",
        "all layers and heads; partner named second, independent noise, everything else frozen",
        n=100,
    )
    for group in "ABCDE"
}
PATHS: dict[str, Any] = {
    "source": "section 4.1, rebinding circuit",
    "metrics": ("probability",),
    "statistic": "mean relative fall of the answer's probability over the group's heads",
    "n": 100,
}
LINKS = {
    stage: Claim(
        f"circuit.chain.{name}",
        said,
        kind="effect",
        where=f"{where}; path patching, other heads frozen, independent noise, keys and values per query head",
        groups=groups,
        **PATHS,
    )
    for stage, name, said, where, groups in (
        ("A", "A_logits", "Group A writes the answer.", "A at the readout to the logits", ("A",)),
        ("B", "B_q_A", "Group B tells A's queries where to look.", "B to the q of A, at the readout", ("B", "A")),
        ("C", "C_v_B", "Group C hands B its values.", "C to the v of B, at the question's box", ("B", "C")),
        ("D", "D_C", "Group D is read by C at the swap.", "D to k and v of C, at the partner in the swap", ("C", "D")),
        ("E", "E_v_D", "Group E hands D its values.", "E to the v of D, at the partner in the context", ("D", "E")),
    )
}
NULL = Claim(
    "circuit.chain.D_q_C",
    "Frozen, group D cannot reach C's query at the question's box.",
    kind="no-effect",
    where="D to the q of C, at the question's box; path patching, other heads frozen, independent noise",
    groups=("C", "D"),
    **PATHS,
)


def accuracies(claim: Claim, study: Study) -> Evidence:
    return study.ablated(study.n(claim))


def held_against(claim: Claim, study: Study, id: str, values: Any, **options: Any) -> Verdict:
    paper = study.printed(id)
    if paper is None:
        return not_applicable(claim.kind, "the paper prints no number for this model")
    return value(values, paper, **options)


@judges(FULL_ACCURACY)
def test_the_full_model_does_the_task(claim: Claim, study: Study) -> Verdict:
    return held_against(claim, study, "accuracy.full", of_circuit(accuracies(claim, study), FULL, "hit"))


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
    mine, whole = (of_circuit(evidence, name, "margin") for name in ("circuit", FULL))
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
        "full": of_circuit(evidence, FULL, measure),
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
    evidence = accuracies(claim, study)
    name = "without E" if study.circuit.group("E") else "circuit"
    return effect(of_circuit(evidence, name, "hit"), above=CHANCE, margin=claim.margin())


@judges(COMPACT)
def test_the_circuit_is_small(claim: Claim, study: Study) -> Verdict:
    total = study.bench.surgeon.anatomy.n_layers * study.bench.surgeon.anatomy.n_heads
    shares = np.array([left(study.pruning(), order).pairs / total for order in range(ORDERS)])
    paper = study.printed("heads.share") if study.asked.alias is None else share_kept(study.asked.alias)
    if paper is None:
        return not_applicable(claim.kind, "the paper prints no number for this model")
    return value(shares, paper, unit=claim.unit, paper_draws=1)


@judges(E_EMPTY, E_PRESENT)
def test_what_pruning_leaves_of_e(claim: Claim, study: Study) -> Verdict:
    kept = [left(study.pruning(), order).group("E") for order in range(ORDERS)]
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
                whole - of_circuit(evidence, f"without {head.group}{head.layer}.{head.head}", "label_logit"),
                margin=claim.margin(),
            )
            for head in heads
        },
    )


@judges(*AGAIN.values())
def test_the_published_heads_are_found_again(claim: Claim, study: Study) -> Verdict:
    group = claim.id[-1]
    if study.circuit_kind == "discovered":
        return not_applicable(claim.kind, "the circuit is our own; there is no other to compare it with")
    published = group_present(group, study.circuit.group(group))
    return guarded(claim.kind, [published], lambda: found_again(study, group))


def found_again(study: Study, group: str) -> Verdict:
    """A group of ours against the published one, and against our own selection on resampled prompts."""
    found = study.discovery
    ours, theirs = found.circuit.group(group), study.circuit.group(group)
    evidence = found.evidence.get(group)
    again = [[]] * 20 if evidence is None else reselected(evidence, STAGES[group].keep, LEAST)
    if group == "A":
        again = [[head for head in one if head not in found.circuit.group("B")] for one in again]
    if not ours:
        return emptiness(ours, empty=False, selections=again)
    anatomy = study.bench.surgeon.anatomy
    return overlap(ours, theirs, universe=anatomy.n_layers * anatomy.n_heads, selections=again)


@judges(*LINKS.values())
def test_every_link_of_the_chain(claim: Claim, study: Study) -> Verdict:
    stage = next(name for name, one in LINKS.items() if one is claim)
    evidence = study.link(stage, STAGES[stage].receivers)
    return effect(lost(evidence, study.circuit.group(stage)), margin=claim.margin())


@judges(NULL)
def test_frozen_d_does_not_reach_the_query_of_c(claim: Claim, study: Study) -> Verdict:
    evidence = study.link("D literal", "C")
    return no_effect(lost(evidence, study.circuit.group("D")), margin=claim.margin())
