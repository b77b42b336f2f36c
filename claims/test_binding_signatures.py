"""Section 5: do queries and keys match, or do keys decide, and from which slot does attention turn?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from claims.catalogue import GEMMA_2, GEMMA_3, LLAMA_3B, LLAMA_8B, row
from claims.conventions import led_by_slot_i, states_attention, under_every_convention
from claims.parts import SHARES
from claims.shifts import (
    KEYS,
    ROW,
    TWICE,
    mean_does_not_exceed,
    mean_exceeds,
    mean_is_above,
    mean_is_not_positive,
    mean_is_zero,
    switches,
)
from rebinding.evidence import Evidence
from rebinding.experiments.binding.summary import controls, shift, size
from rebinding.paper.claim import Claim
from rebinding.study.study import Study
from rebinding.verdicts import Verdict, reported
from rebinding.verdicts.sentences import Part, all_of, any_of

SECTION = "binding"
MOST = 0.5
FINDINGS: Mapping[str, Mapping[str, str]] = {
    "gone": {"REPLICATED": "gone", "NOT REPLICATED": "stays"},
    "below-half": {"REPLICATED": "below-half", "NOT REPLICATED": "not-below-half"},
}
"""The finding of a reported row, by the outcome of its rule."""


@row("binding.qk_cancels",
     "Shifting query and keys together undoes what either does: attention turns less than by each alone, and not toward"
     " the other slot.",
     kind="ordering", metrics=("dR", "dlogit", "switch"), models=(GEMMA_2, GEMMA_3), headline=3,
     statistic="dR of the query's and the keys' shift above 0 (controlled: above the margin); paired differences of dR"
     " to both together above 0; dR of both together. On Gemma-2-9B also their switches against a random shift's, on"
     " Gemma-3-12B also their dlogit, as the text cites them", **TWICE)  # fmt: skip
@under_every_convention("qk")
def test_query_and_keys_together_cancel(claim: Claim, study: Study) -> Verdict:
    return all_of(claim.kind, cancelled(claim, study, study.binding(claim)), level=claim.level)


def cancelled(claim: Claim, study: Study, evidence: Evidence) -> dict[str, Part]:
    """Each shift alone turns attention; both together turn it less than each, and not toward the other slot.

    In a controlled row each alone must turn it by the margin. Directions are means over finitely many prompts, and the
    noise in the query's direction is the noise in the keys'. So in a model without slots both together turn attention
    by an amount of order 1 / prompts, always the same way, and each alone by nothing.
    """
    both, margin = shift(evidence, "qk", "dR"), claim.margin("dR")
    single = {name: shift(evidence, name, "dR") for name in ("q", "k_both")}
    single_margin = margin if claim.procedure == "controlled" else 0.0
    parts: dict[str, Part] = {
        f"attention by {name}": mean_is_above(values, single_margin) for name, values in single.items()
    }
    parts |= {f"less attention than {name}": mean_exceeds(values, both, 0.0) for name, values in single.items()}
    parts["attention by both"] = mean_is_not_positive(both, margin)
    if study.paper_model == GEMMA_2:
        candidates = {
            f"{control}, {measure}": mean_does_not_exceed(
                shift(evidence, "qk", measure), shift(evidence, control, measure), claim.margin("switch"), SHARES
            )
            for control in controls(evidence)
            for measure in switches(study.procedure(claim))
        }
        parts["switches no more than random"] = partial(any_of, claim.kind, candidates)
    if study.paper_model == GEMMA_3:
        parts["answer by both"] = mean_is_not_positive(shift(evidence, "qk", "dlogit"), claim.margin("dlogit"))
    return parts


@row("binding.qk_cancels_logit",
     "How far query and keys together move the answer, beside each alone and random shifts.",
     kind="report", metrics=("dlogit",), models=(), statistic="mean dlogit of every condition; whether that of both is"
     " surely not above the margin (gone), surely above it (stays), or open", **TWICE)  # fmt: skip
@states_attention
def test_the_answer_of_query_and_keys_together(claim: Claim, study: Study) -> Verdict:
    """The text cites the logit of Gemma-3-12B alone; in the table of Gemma-2-9B 1.57 of 4.25 remain."""

    def find(evidence: Evidence) -> str:
        verdict = mean_is_not_positive(shift(evidence, "qk", "dlogit"), claim.margin())(level=claim.level)
        return FINDINGS["gone"].get(verdict.outcome, "open")

    evidence = study.binding(claim)
    means = {name: float(shift(evidence, name, "dlogit").mean()) for name in evidence.settings["conditions"]}
    numbers = ", ".join(f"{name} {mean:.2f}" for name, mean in means.items())
    return report_at_readouts(claim, study, find, f"mean dlogit: {numbers}", means["qk"])


@row("binding.key_dominance",
     "A shift of keys turns attention more than the query's, and both together still turn it.",
     kind="ordering", metrics=("dR",), models=(LLAMA_3B, LLAMA_8B), headline=4,
     statistic="paired difference of the largest of the three shifts of keys to the size of the query's, and mean",
     **TWICE)  # fmt: skip
@under_every_convention(*KEYS, "qk")
def test_keys_dominate(claim: Claim, study: Study) -> Verdict:
    return all_of(claim.kind, dominated(study.binding(claim), claim.margin("dR")), level=claim.level)


def dominated(evidence: Evidence, margin: float) -> dict[str, Part]:
    """The parts of the signature that the paper calls key dominated."""
    query, both = size(shift(evidence, "q", "dR")), shift(evidence, "qk", "dR")
    keys = {name: mean_exceeds(shift(evidence, name, "dR"), query, margin) for name in KEYS}
    return {"keys over query": partial(any_of, "ordering", keys), "both together": mean_is_above(both, margin)}


@row("binding.query_below_half",
     "Whether the query's shift turns attention less than half as far as a shift of keys does.",
     kind="report", metrics=("dR",), models=(), statistic="half of the largest of the three shifts of keys less the"
     " size of the query's: surely above the margin (below-half), surely not (not-below-half), or open",
     **TWICE)  # fmt: skip
@states_attention
def test_the_query_is_below_half(claim: Claim, study: Study) -> Verdict:
    """The paper calls the query weak; the boundary of one half is ours."""

    def find(evidence: Evidence) -> str:
        query = size(shift(evidence, "q", "dR"))
        halves = {name: mean_exceeds(shift(evidence, name, "dR") / 2, query, claim.margin()) for name in KEYS}
        return FINDINGS["below-half"].get(any_of("ordering", halves, level=claim.level).outcome, "open")

    evidence = study.binding(claim)
    query = float(size(shift(evidence, "q", "dR")).mean())
    keys = max(float(shift(evidence, name, "dR").mean()) for name in KEYS)
    numbers = f"size of dR by the query {query:.2f}, largest dR by keys {keys:.2f}"
    return report_at_readouts(claim, study, find, numbers, keys / 2 - query)


@row("binding.signature", "Which signature the model shows: matching, key dominated, or neither.",
     kind="report", metrics=("dR",), statistic="which of the three sets of rules holds", models=(),
     **TWICE)  # fmt: skip
@states_attention
def test_the_signature(claim: Claim, study: Study) -> Verdict:
    """At every candidate readout token; the number is that of the first."""
    q, k = (shift(study.binding(claim), name, "dR").mean() for name in ("q", "k_both"))
    numbers = f"mean dR by the query {q:.2f}, by both kinds of keys {k:.2f}"
    return report_at_readouts(claim, study, lambda evidence: signature(evidence, claim.margin()), numbers, float(k - q))


def signature(evidence: Evidence, margin: float) -> str:
    """The name of the set of rules that holds, or neither."""
    q, k, qk = (shift(evidence, name, "dR") for name in ("q", "k_both", "qk"))
    signatures: dict[str, Callable[[], dict[str, Part]]] = {
        "matching": lambda: {
            "query": mean_is_above(q, margin),
            "keys": mean_is_above(k, margin),
            "both": mean_is_zero(qk, margin),
        },
        "key-dominated": lambda: dominated(evidence, margin),
    }
    names = (name for name, parts in signatures.items() if all_of("ordering", parts()).outcome == "REPLICATED")
    return next(names, "neither")


@row("binding.slot_attended",
     "How often slot i leads in the attention of group B before any edit: the ceiling of Switch.",
     kind="report", metrics=("switch",), models=(), statistic="share of heads and prompts whose largest slot is i; in"
     " most prompts or in few, with the attention of all heads together", **ROW)  # fmt: skip
@states_attention
def test_the_attended_slot(claim: Claim, study: Study) -> Verdict:
    """A switch starts at slot i, so this share bounds the share of switches."""

    def find(evidence: Evidence) -> str:
        return "in-most" if led_by_slot_i(evidence)[1] > MOST else "in-few"

    by_head, by_prompt = led_by_slot_i(study.binding(claim))
    numbers = f"slot i leads in {by_head:.0%} of heads and prompts, and in {by_prompt:.0%} of prompts, heads together"
    return report_at_readouts(claim, study, find, numbers, by_head)


def report_at_readouts(
    claim: Claim, study: Study, find: Callable[[Evidence], str], numbers: str, measured: float
) -> Verdict:
    """Report the finding at every candidate readout token; `numbers` and `measured` are those of the first."""
    places = study.at_readouts(study.procedure(claim).binding)
    findings = {place: find(place_study.binding(claim)) for place, place_study in places.items()}
    is_same = len(set(findings.values())) == 1
    by_place = ", ".join(f"{finding} {place}" for place, finding in findings.items())
    finding = next(iter(findings.values())) if is_same else by_place
    n = shift(study.binding(claim), "q", "dR").shape[-1]
    return reported(finding, f"{finding}: {numbers}", measured=measured, n=n)
