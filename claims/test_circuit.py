"""Section 4.1: a small circuit does the task."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np

from claims.catalogue import GEMMA_2, GEMMA_3, LLAMA_3B, LLAMA_8B, row
from claims.circuits import (
    PER_CENT,
    compare_random_with_printed,
    compare_with_printed,
    contributes_a_per_cent,
    has_e_before_pruning,
    share_of_heads,
    shares,
)
from claims.conventions import SHARES, circuit_exceeds_random, judge_candidates, judge_random_sizes, printed_number
from rebinding.evidence import Evidence
from rebinding.experiments.ablation import VariantName
from rebinding.experiments.circuit.request import request_contributions
from rebinding.experiments.circuit.summary import (
    circuit_works_alone,
    circuits_after_walks,
    contribution,
    margin_drop,
    of_circuit,
    of_random,
    random_sizes,
    scores_before_pruning,
    without_group,
    without_head,
)
from rebinding.experiments.search.request import request_searched_circuit
from rebinding.paper.claim import Claim, Metric, Unit
from rebinding.study.study import Study
from rebinding.testing import rows
from rebinding.verdicts import (
    Verdict,
    effect,
    emptiness,
    invalid,
    no_effect,
    not_applicable,
    value,
)
from rebinding.verdicts.quantities import with_quantities
from rebinding.verdicts.sentences import Part, all_of, any_of, most_of

SECTION = "circuit"
CHANCE = 1 / 3
MOST = 0.9
NEAR = 0.75
"""The share of the full model's hits that counts as near full."""
EIGHTH, FEWEST_HEADS = 1 / 8, 200
"""The share of a model's heads that counts as few, of models with so many heads or more."""
PRINTED: tuple[tuple[str, Metric, str], ...] = (
    ("margins", "margin", "margin over the other objects"),
    ("label_logits", "logit", "logit"),
)
VARIANTS: tuple[tuple[VariantName, str, Unit], ...] = (
    ("full", "the full model", "prompts"),
    ("circuit", "the circuit", "prompts"),
    ("random", "random circuits", "nested"),
)
COLUMNS: dict[Metric, str] = {"margin": "margin", "logit": "label_logit"}
"""The column of a quantity in the evidence of a circuit."""
LOW, HIGH = 0.03, 0.10
SIZE = "introduction, item 2"
EVALUATION = "section 4.1, results; section 6, circuit evaluation"
ROW: dict[str, Any] = {
    "source": "appendix, further metrics of the circuits",
    "where": "readout; other heads held at their mean",
}
ACCURACY = ROW | {"metrics": ("accuracy",), "source": EVALUATION}
SEARCHED: dict[str, Any] = {
    "where": "the heads at tokens that position-free discovery finds, all others at their mean over counterbalanced"
    " prompts; random circuits matched by layer; prompts and words that discovery did not see, about a box that is"
    " swapped",
    "long": True,
    "headline": None,  # discovery takes longer than all other headline rows together
}
FOUND: dict[str, Any] = {"source": EVALUATION, "n": 50}
SEVERAL = "over several walks, each in an order and on prompts of its own"
SHARE_LEFT = f"share of head-position pairs left, {SEVERAL}"
E_LEFT = "section 4.1, results; the table of heads of the four models"
WALKS = FOUND | {
    "metrics": ("share",),
    "unit": "circuit draws",
    "where": "the circuit that we discovered",
    "long": True,  # discovered in each of five ways
}


def evidence_of_circuit(claim: Claim, study: Study) -> Evidence:
    """Evidence of mean ablation outside the circuit; a controlled row takes the circuit of position-free discovery."""
    return study.ablate_circuit(claim) if claim.procedure == "published" else study.ask(claim, request_searched_circuit)


def with_accuracies(verdict: Verdict, evidence: Evidence) -> Verdict:
    """The verdict with the three accuracies that a reader expects; random circuits of the size that decided."""
    circuit, full = (of_circuit(evidence, which, "hit") for which in ("circuit", "full"))
    size = next((size for name, size in random_sizes(evidence).items() if name in verdict.part), "")
    hits = {"circuit": circuit, "full model": full, "random circuits": of_random(evidence, "hit", size)}
    return with_quantities(verdict, "accuracy", hits)


@row("circuit.full_model_accuracy", "The full model answers this share of the prompts.",
     kind="value", printed="accuracy.full",
     statistic="share of prompts whose answer beats the other objects", **ACCURACY)  # fmt: skip
def test_the_full_model_does_the_task(claim: Claim, study: Study) -> Verdict:
    return compare_with_printed(claim, study, of_circuit(study.ablate_circuit(claim), "full", "hit"))


@row("circuit.recovers_accuracy", "The circuit alone answers this share of the prompts.",
     kind="value", printed="accuracy.circuit", headline=1,
     statistic="the same, all other heads ablated", **ACCURACY)  # fmt: skip
def test_the_circuit_recovers_it(claim: Claim, study: Study) -> Verdict:
    return compare_with_printed(claim, study, of_circuit(study.ablate_circuit(claim), "circuit", "hit"))


@row("circuit.random_baseline", "Random circuits of the same size answer this share of the prompts.",
     kind="value", printed="accuracy.random", unit="nested",
     statistic="mean share over draws and prompts, both drawn: random circuits may guess alike; of the pruned circuit's"
     " size, or of the size before pruning",
     **ACCURACY)  # fmt: skip
def test_random_circuits_are_as_printed(claim: Claim, study: Study) -> Verdict:
    return compare_random_with_printed(claim, study, "hit")


@row("circuit.recovers_most",
     "The circuit recovers most of the task: more than half of what the full model has over random circuits.",
     kind="effect", unit="nested", headline=1,
     statistic="hits of the circuit less half of the full model's and half of random circuits', above 0; draws crossed"
     " with prompts: F(Cir) - F(Random) more than half of F(M) - F(Random)",
     controlled=SEARCHED, **ACCURACY)  # fmt: skip
def test_the_circuit_recovers_most_of_the_task(claim: Claim, study: Study) -> Verdict:
    evidence = evidence_of_circuit(claim, study)
    circuit, full = (of_circuit(evidence, which, "hit").astype(float) for which in ("circuit", "full"))

    def judge(size: str) -> Part:
        halfway = (full + of_random(evidence, "hit", size)) / 2  # (draw, prompt)
        return partial(effect, circuit - halfway, margin=0.0, unit=claim.unit, support=SHARES)

    return with_accuracies(judge_random_sizes(claim, evidence, judge), evidence)


@row("circuit.near_full",
     "The circuit alone answers at least three quarters of the prompts that the full model answers.",
     kind="effect", headline=1,
     statistic="hits of the circuit less three quarters of the full model's, by prompt, above 0; 'near full' is the"
     " paper's, the three quarters are ours",
     controlled=SEARCHED, **(ACCURACY | {"source": f"{SIZE} (\"near full model performance\")"}))  # fmt: skip
def test_the_circuit_is_near_the_full_model(claim: Claim, study: Study) -> Verdict:
    evidence = evidence_of_circuit(claim, study)
    circuit, full = (of_circuit(evidence, which, "hit").astype(float) for which in ("circuit", "full"))
    verdict = effect(circuit - NEAR * full, margin=0.0, support=(-NEAR, 1.0))
    shares = f"the circuit answers {circuit.mean():.3g} and the full model {full.mean():.3g} of the prompts"
    return with_accuracies(replace(verdict, reason=f"{shares}; {verdict.reason}"), evidence)


@row("circuit.beats_random", "The circuit answers more prompts than random circuits of its size.",
     kind="ordering", unit="nested", statistic="difference of hits, draws crossed with prompts",
     controlled={
         "statement": "The circuit answers more prompts than random circuits with as many heads at each token in each"
         " layer.",
         "where": "readout; counterbalanced prompts; other heads held at their mean over such prompts; random circuits"
         " matched by layer",
     },
     **ACCURACY)  # fmt: skip
def test_the_circuit_beats_random_ones(claim: Claim, study: Study) -> Verdict:
    evidence = study.ablate_circuit(claim)
    return judge_random_sizes(claim, evidence, lambda size: circuit_exceeds_random(claim, evidence, size=size))


@row("circuit.not_a_floor", "The circuit is better than random ones although the model is weak.",
     kind="ordering", models=(LLAMA_3B,),
     statistic="difference of hits to random circuits; and the model's own accuracy, below nine tenths",
     **(ACCURACY | {"source": "appendix, correct examples of Llama-3B"}))  # fmt: skip
def test_the_circuit_is_no_floor(claim: Claim, study: Study) -> Verdict:
    evidence = study.ablate_circuit(claim)
    misses = partial(effect, ~of_circuit(evidence, "full", "hit"), above=1 - MOST, margin=0.0)

    def judge(size: str) -> Part:
        exceeds = circuit_exceeds_random(claim, evidence, size=size)
        return partial(all_of, claim.kind, {"over random circuits": exceeds, "the model misses": misses})

    return judge_random_sizes(claim, evidence, judge)


@rows(
    Claim(f"circuit.{name}.{which}", f"The answer's {quantity} in {circuits} is the printed one.", kind="value",
          metrics=(metric,), condition=which, printed=f"{metric}.{which}", unit=unit,
          statistic=f"mean {metric}, over {'prompts' if unit == 'prompts' else 'draws crossed with prompts'}", **ROW)
    for name, metric, quantity in PRINTED for which, circuits, unit in VARIANTS)  # fmt: skip
def test_margins_and_logits_are_as_printed(claim: Claim, study: Study) -> Verdict:
    which, measure = cast("VariantName", claim.condition), COLUMNS[claim.metrics[0]]
    if which == "random":
        return compare_random_with_printed(claim, study, measure)
    return compare_with_printed(claim, study, of_circuit(study.ablate_circuit(claim), which, measure), unit=claim.unit)


@row("circuit.e_prime",
     "Without the heads of group E the circuit still answers, because the residual stream at the context still says"
     " where the boxes are bound.",
     source="section 4.1, results (\"may already be available\")", kind="effect", metrics=("accuracy", "margin"), n=50,
     group="E", needs=("D",), models=(),
     statistic="share of prompts answered without group E, above chance; and by how much the answer's margin over the"
     " other objects falls with the other stream, by prompt, above the margin",
     where="readout; other heads held at their mean; the stream at the partner's label in the context, in front of the"
     " layers of group D, replaced by that of the same word in a prompt whose statements have moved on by one"
     " slot")  # fmt: skip
def test_the_answer_survives_without_e(claim: Claim, study: Study) -> Verdict:
    if not has_e_before_pruning(claim, study):
        reason = "the circuit had no group E, so there is nothing for the stream to stand in for"
        return not_applicable(claim.kind, reason)
    hits = without_group(study.ablate_circuit(claim), "E", "hit")
    stream = study.patch_context_stream(claim)
    parts: dict[str, Part] = {
        "answers without E": partial(effect, hits, above=CHANCE, margin=claim.margin("accuracy")),
        "another stream": partial(effect, margin_drop(stream), margin=claim.margin("margin")),
    }
    return all_of(claim.kind, parts)


@row("circuit.few_heads", "What pruning leaves of the discovered circuit is at most an eighth of the model's heads.",
     kind="effect", models=(), headline=1,
     statistic=f"an eighth less the share of all heads that is left, each head counted once, {SEVERAL}; the eighth is"
     " ours",
     **(WALKS | {
         "source": f"{SIZE} (\"compact\")",
         "where": "the circuit that we discovered in the first of the published ways",
         "long": False,
     }))  # fmt: skip
def test_the_circuit_has_few_heads(claim: Claim, study: Study) -> Verdict:
    heads = len(study.heads)
    if study.paper_model is not None:
        share = f"{study.circuit.unique} of {heads} heads, {study.circuit.unique / heads:.1%}"
        return not_applicable(claim.kind, f"the circuit is the list that the paper prints: {share}")
    if heads < FEWEST_HEADS:
        reason = f"the model has {heads} heads; of fewer than {FEWEST_HEADS} a working circuit may need more than that"
        return not_applicable(claim.kind, reason)
    first = next(iter(study.prunings(claim).values()))
    shares = np.array([circuit.unique / heads for circuit in circuits_after_walks(first)])  # (walk,)
    verdict = effect(EIGHTH - shares, margin=0.0, unit=claim.unit, level=claim.level)
    return with_quantities(verdict, "share", {"heads left": shares})


@row("circuit.compact", "Pruning leaves this share of the heads.",
     kind="value", printed="heads.share", statistic=SHARE_LEFT, **WALKS)  # fmt: skip
def test_the_circuit_is_small(claim: Claim, study: Study) -> Verdict:
    paper = printed_number(claim, study)
    if paper is None:
        return not_applicable(claim.kind, f"the paper prints no number for this model; {share_of_heads(study)}")
    by_discovery = shares(claim, study)

    def judge(name: str, level: float) -> Verdict:
        return value(by_discovery[name], paper, unit=claim.unit, paper_draws=1, level=level)

    return judge_candidates(claim, judge, by_discovery)


@row("circuit.three_to_ten_percent", "Pruning leaves three to ten per cent of the heads.",
     kind="no-effect", models=(GEMMA_2, LLAMA_3B, LLAMA_8B),
     statistic=f"{SHARE_LEFT}, within 0.03 to 0.10",
     **(WALKS | {"source": SIZE}))  # fmt: skip
def test_the_circuit_is_three_to_ten_per_cent(claim: Claim, study: Study) -> Verdict:
    by_discovery = shares(claim, study)
    bounds: dict[str, Any] = {"about": (LOW + HIGH) / 2, "margin": (HIGH - LOW) / 2, "unit": claim.unit}
    return judge_candidates(
        claim, lambda name, level: no_effect(by_discovery[name], level=level, **bounds), by_discovery
    )


@row("circuit.group_e_empty", "Pruning leaves nothing of group E.",
     kind="set", group="E", needs=(), condition="empty", models=(GEMMA_2, LLAMA_3B),
     statistic=f"the heads left, {SEVERAL}", **(WALKS | {"source": E_LEFT}))  # fmt: skip
@row("circuit.group_e_present", "Pruning leaves heads of group E.",
     kind="set", group="E", needs=(), condition="present", models=(GEMMA_3, LLAMA_8B),
     statistic=f"the heads left, {SEVERAL}", **(WALKS | {"source": E_LEFT}))  # fmt: skip
def test_what_pruning_leaves_of_e(claim: Claim, study: Study) -> Verdict:
    prunings = study.prunings(claim)

    def judge(name: str, level: float) -> Verdict:
        first, *selections = (circuit.group("E") for circuit in circuits_after_walks(prunings[name]))
        return emptiness(first, empty=claim.condition == "empty", selections=selections, level=level)

    return judge_candidates(claim, judge, prunings)


@row("circuit.minimal", "At least nine in ten of the heads that pruning keeps cannot go without a loss.",
     kind="effect", metrics=("margin",), models=(), procedure="controlled",
     statistic="share of the heads without which the answer's margin surely falls by half a step of pruning, on prompts"
     " that pruning did not see",
     where="the discovered circuit after pruning, all other heads held at their mean", **FOUND)  # fmt: skip
def test_no_kept_head_can_go(claim: Claim, study: Study) -> Verdict:
    heads, pruning = study.pruned_circuit.heads, next(iter(study.prunings(claim).values()))
    if not heads:
        return invalid(claim.kind, "circuit_left", "pruning left no head of the discovered circuit, one is needed")
    if not circuit_works_alone(pruning):
        score, full_score = scores_before_pruning(pruning)
        reason = f"the discovered circuit alone has a score of {score:.3g}, the full model one of {full_score:.3g}"
        return invalid(claim.kind, "circuit_left", f"{reason}: half of it is needed, or no head is of any use")
    evidence, margin = study.ablate_each_head(claim), study.conventions(claim).prune_step / 2
    full = of_circuit(evidence, "circuit", "margin")
    losses = {head: full - without_head(evidence, head, "margin") for head in heads}
    parts = {f"{at.group} {at.layer}.{at.head}": partial(effect, loss, margin=margin) for at, loss in losses.items()}
    return most_of(claim.kind, parts, MOST)


@row("circuit.pruned_as_stated",
     "No head of the published circuit contributes less than one per cent of the answers: those were pruned.",
     kind="effect", needs=("A",),
     statistic="hits of the circuit less 1.01 times those without the head, by prompt, above 0 beside one set of other"
     " heads that is gone, at least: none, a whole group, or one of eight drawn sets, where half of the hits remain",
     **(ACCURACY | {"source": "section 4.1, circuit evaluation"}))  # fmt: skip
def test_every_head_contributes_a_per_cent(claim: Claim, study: Study) -> Verdict:
    if study.has_discovered_circuit:
        return not_applicable(claim.kind, "the circuit was discovered on this model, and pruned by another rule")
    evidence = study.ask(claim, partial(request_contributions, conventions=study.conventions(claim)))
    contributions = contribution(evidence, PER_CENT).items()
    heads = {head: partial(any_of, claim.kind, contributes_a_per_cent(by_set)) for head, by_set in contributions}
    return all_of(claim.kind, heads)
