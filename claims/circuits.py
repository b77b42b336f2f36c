"""Parts of sentences about circuits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from claims.parts import of_candidates, printed_number
from rebinding.evidence import Evidence
from rebinding.experiments.circuit.request import Which
from rebinding.experiments.circuit.summary import Array, circuits_after_walks, of_circuit, of_random
from rebinding.experiments.paths.summary import RESAMPLES, lost_by_senders, reselected, scores_by_head
from rebinding.paper.circuit import Head
from rebinding.paper.claim import Claim
from rebinding.study.study import Study
from rebinding.verdicts import (
    Verdict,
    effect,
    emptiness,
    not_applicable,
    overlap,
    rank_overlap,
    ratio,
    reported,
    value,
)
from rebinding.verdicts.gates import TIMES_THE_FLOOR
from rebinding.verdicts.sentences import Part
from rebinding.verdicts.sets import Null

PER_CENT = 0.01
BELOW, ABOVE, EQUAL = "below-the-model", "above-the-model", "within-error"
"""What the share of the model's hits that a circuit has may come to."""
FEW = 2
"""Published heads of a group that is judged by rank: an overlap with so few says little."""


def compare_with_printed(claim: Claim, study: Study, values: Any, **options: Any) -> Verdict:
    """Our values against the claim's printed number."""
    paper = printed_number(claim, study)
    if paper is None:
        return not_applicable(claim.kind, "the paper prints no number for this model")
    return value(values, paper, **options)


def of_variant(evidence: Evidence, which: Which, measure: str) -> Array:
    """A measure on the full model or the circuit, by prompt; or on random circuits (draw, prompt)."""
    return of_random(evidence, measure) if which == "random" else of_circuit(evidence, which, measure)


def share_of_hits(circuit: Array, full: Array) -> Verdict:
    """F(Cir) / F(M) with its interval. The only boundary is the model itself: the paper prints no threshold."""
    found = ratio(circuit, full)
    below = found.high is not None and found.high < 1
    finding = BELOW if below else ABOVE if found.low > 1 else EQUAL
    high = "no upper bound" if found.high is None else f"{found.high:.3g}"
    reason = f"F(Cir) / F(M) is {found.value:.3g} in [{found.low:.3g}, {high}]: {finding}"
    return reported(finding, reason, measured=found.value, low=found.low, high=found.high, against=1.0, n=len(circuit))


def had_e(claim: Claim, study: Study) -> bool:
    """Whether there was a group E before pruning. In the paper there always was: stage E keeps ten heads."""
    if study.circuit_from != "discovered":
        return study.circuit_from == "published" or bool(study.circuit.group("E"))
    return any(found.circuit.group("E") for found in study.discoveries(claim.controlled()).values())


def share_of_heads(study: Study) -> str:
    """How large the circuit is that claims are about, in a sentence."""
    pairs = study.circuit.pairs
    return f"its circuit has {pairs} head-position pairs, {pairs / study.all_heads:.1%} of {study.all_heads} heads"


def shares(claim: Claim, study: Study) -> dict[str, Array]:
    """Which share of all heads each walk of pruning leaves, for every discovery that it may have been; for the first
    alone, if the claim is not long."""
    return {
        name: np.array([one.pairs / study.all_heads for one in circuits_after_walks(evidence)])
        for name, evidence in study.prunings(claim).items()
    }


def contributing(beside: Mapping[str, Array]) -> dict[str, Part]:
    """The head surely contributes more than a per cent, beside each of the sets that are gone."""
    support = (-1 - PER_CENT, 1.0)
    return {f"beside {gone}": partial(effect, values, margin=0.0, support=support) for gone, values in beside.items()}


def found_again(claim: Claim, study: Study, group: str, name: str, level: float) -> Verdict:
    """A group of ours against the published one, and against our own selection on resampled prompts. Of one or two
    published heads the rank among all senders counts, of more the overlap."""
    found, conventions = study.discoveries(claim)[name], study.conventions(claim)
    ours, theirs = found.circuit.group(group), study.circuit.group(group)
    evidence = found.evidence.get(group)
    taken = found.circuit.group("B") if group == "A" else ()
    again = (
        [[]] * RESAMPLES
        if evidence is None
        else reselected(evidence, conventions.score, conventions.select, exclude=taken)
    )
    if evidence is None or not ours:
        return emptiness(ours, empty=False, selections=again, level=level)
    null: Null = "layers" if conventions.random == "role_and_layer" else "universe"
    if len(theirs) <= FEW:
        ranked: dict[str, Any] = {"scores": scores_by_head(evidence, conventions.score), "null": null}
        return rank_overlap(ours, theirs, selections=again, level=level, **ranked)
    told: dict[str, Any] = {"universe": study.all_heads, "null": null, "layers": study.layers}
    return overlap(ours, theirs, selections=again, level=level, **told)


def falls(claim: Claim, study: Study, links: Mapping[str, Evidence], heads: Sequence[Head]) -> Verdict:
    """The answer's lead falls by more than what the released code prunes at, or than rounding where that is larger."""
    counts = max(claim.margin(), TIMES_THE_FLOOR * study.measured_floor)

    def judged(name: str, level: float) -> Verdict:
        found = effect(lost_by_senders(links[name], heads, "logit"), margin=counts, level=level)
        relative = lost_by_senders(links[name], heads, "probability").mean()
        return replace(found, reason=f"{found.reason}; relatively the probability falls by {relative:.2g}")

    return of_candidates(claim, judged, links)
