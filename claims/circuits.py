"""Judge parts of sentences about circuits; shared by the tests of sections 4.1 and beyond."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from claims.conventions import judge_candidates, judge_random_sizes, printed_number
from rebinding.evidence import Evidence
from rebinding.experiments.circuit.summary import Array, circuits_after_walks, of_random
from rebinding.experiments.paths.request import STAGE_BY_NAME, random_senders
from rebinding.experiments.paths.summary import (
    largest_changes,
    lost_by_senders,
    reselected,
    scores_by_head,
    selected_on_halves,
)
from rebinding.paper.claim import Claim
from rebinding.study.study import Study
from rebinding.verdicts import (
    Verdict,
    absence,
    edits_change_values,
    effect,
    exceeds_random,
    not_applicable,
    overlap,
    rank_overlap,
    require,
    value,
)
from rebinding.verdicts.sentences import Part, all_of

PER_CENT = 0.01
NOT_PRINTED = "the paper prints no number for this model"
FEW = 2
"""Groups of up to this many published heads are judged by rank, because an overlap with so few says little."""


def compare_with_printed(claim: Claim, study: Study, values: Any, **options: Any) -> Verdict:
    """Our values compared with the claim's printed number."""
    paper = printed_number(claim, study)
    if paper is None:
        return not_applicable(claim.kind, NOT_PRINTED)
    return value(values, paper, **options)


def compare_random_with_printed(claim: Claim, study: Study, measure: str) -> Verdict:
    """A measure on random circuits compared with the printed number, whichever size the paper's had."""
    evidence, paper = study.ablate_circuit(claim), printed_number(claim, study)
    if paper is None:
        return not_applicable(claim.kind, NOT_PRINTED)
    return judge_random_sizes(
        claim, evidence, lambda size: partial(value, of_random(evidence, measure, size), paper, unit=claim.unit)
    )


def has_e_before_pruning(claim: Claim, study: Study) -> bool:
    """Whether the circuit had a group E before pruning. The paper's always had: stage E keeps ten heads."""
    if study.circuit_from != "discovered":
        return study.circuit_from == "published" or bool(study.circuit.group("E"))
    return any(discovery.circuit.group("E") for discovery in study.discoveries(claim.controlled()).values())


def share_of_heads(study: Study) -> str:
    """The size of the circuit that claims are about, in words."""
    pairs = study.circuit.pairs
    return f"its circuit has {pairs} head-position pairs, {pairs / len(study.heads):.1%} of {len(study.heads)} heads"


def shares(claim: Claim, study: Study) -> dict[str, Array]:
    """The share of all heads that each pruning order leaves, for every candidate discovery."""
    return {
        name: np.array([circuit.pairs / len(study.heads) for circuit in circuits_after_walks(evidence)])
        for name, evidence in study.prunings(claim).items()
    }


def contributes_a_per_cent(contributions: Mapping[str, Array]) -> dict[str, Part]:
    """The head surely contributes more than a per cent, one part for each set of other heads that is removed."""
    support = (-1 - PER_CENT, 1.0)
    return {
        f"with {removed} removed": partial(effect, values, margin=0.0, support=support)
        for removed, values in contributions.items()
    }


def compare_with_published_group(claim: Claim, study: Study, group: str, name: str, level: float) -> Verdict:
    """A discovered group compared with the published one, and with repetitions of our own. For up to two published
    heads the rank among all senders counts, for more the overlap beyond a draw of as many heads in each layer: who
    knows the layers alone overlaps more than a draw of all heads does."""
    discovery, conventions = study.discoveries(claim)[name], study.conventions(claim)
    discovered, published = discovery.circuit.group(group), study.circuit.group(group)
    while group not in discovery.evidence:  # this stage had no receivers, so the one that looked for them decides
        receivers = STAGE_BY_NAME[group].receivers
        assert receivers is not None, "the first stage, which reads the logits, is always run"
        group = receivers
    exclude = discovery.circuit.group("B") if group == "A" else ()
    selection: Any = discovery.evidence[group], conventions.score, conventions.select, exclude
    if not discovered:
        return absence(reselected(*selection), level=level)
    repetitions = selected_on_halves(*selection)
    if len(published) <= FEW:
        scores = scores_by_head(discovery.evidence[group], conventions.score)
        return rank_overlap(discovered, published, repetitions=repetitions, level=level, scores=scores)
    options: dict[str, Any] = {"universe": len(study.heads), "null": "layers", "layers": study.layers}
    return overlap(discovered, published, repetitions=repetitions, level=level, **options)


def lowers_the_lead(claim: Claim, study: Study, links: Mapping[str, Evidence], group: str, margin: float) -> Verdict:
    """The answer's lead falls by the margin at least, and by more than with random senders of the group's layers.

    The group counts as one more random choice. Published, the fall is that of each head in the mean; controlled, of
    all together.
    """
    heads, others = study.circuit.group(group), random_senders(study.circuit.groups[group], study.heads)
    times = len(heads) if claim.procedure == "controlled" else 1
    for link in links.values():  # the log has required this of all senders together, random ones included
        require(edits_change_values(largest_changes(link, heads)))

    def judge(name: str, level: float) -> Verdict:
        link = links[name]
        own = lost_by_senders(link, heads, "logit")
        random = np.stack([lost_by_senders(link, senders, "logit") for senders in others])  # (draw, prompt)
        parts: dict[str, Part] = {
            "the lead falls": partial(effect, own * times, margin=margin),
            "more than with random senders": partial(exceeds_random, own * times, random * times, margin=margin),
        }
        verdict = all_of(claim.kind, parts, level=level)
        falls = f"the lead falls by {own.mean():.3g} a head, with random senders by {random.mean():.2g}"
        relative = f"the probability, relatively, by {lost_by_senders(link, heads, 'probability').mean():.2g}"
        return replace(verdict, reason=f"{verdict.reason}; {falls}; {relative}")

    return judge_candidates(claim, judge, links)
