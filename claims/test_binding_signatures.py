"""Section 5: do queries and keys match, or do keys decide, and from which slot does attention turn?"""

from __future__ import annotations

from collections.abc import Callable

from claims.catalogue import GEMMA_2, GEMMA_3, LLAMA_3B, LLAMA_8B, row
from claims.conventions import led_by_slot_i, states_attention
from claims.shifts import EVERY_MODEL, OTHER_MODELS, ROW, TWICE, mean_is_not_positive
from claims.signatures import judge_signature, key_dominated, levels, matching
from rebinding.evidence import Evidence
from rebinding.experiments.binding.summary import shift
from rebinding.paper.claim import Claim
from rebinding.study.study import Study
from rebinding.verdicts import Verdict, reported
from rebinding.verdicts.sentences import all_of

SECTION = "binding"
MOST = 0.5
FINDINGS = {"REPLICATED": "gone", "NOT REPLICATED": "stays"}
"""What becomes of the answer, by the outcome of the rule "not above the margin"."""


@row("binding.qk_cancels",
     "Shifting query and keys together undoes what either does: less than half of either is left, and what is left is"
     " small, toward either slot.",
     kind="ordering", metrics=("dR", "dlogit"), models=(GEMMA_2, GEMMA_3), headline=3,
     statistic="dR of the query's and the keys' shift above 0 (above the margin where the paper does not say it, and"
     " controlled); half of either above dR of both together; size of the latter below the larger of the margin and a"
     " quarter of the smaller shift. On Gemma-2-9B also nearer to random than half way to either, on Gemma-3-12B also"
     " dlogit of both not above the margin, as the text cites them", **(TWICE | EVERY_MODEL))  # fmt: skip
def test_query_and_keys_together_cancel(claim: Claim, study: Study) -> Verdict:
    return judge_signature(claim, study, own=matching, other=key_dominated)


@row("binding.qk_cancels_logit",
     "How far query and keys together move the answer, beside each alone and random shifts.",
     kind="report", metrics=("dlogit",), models=(), statistic="mean dlogit of every condition; whether that of both is"
     " surely not above the margin (gone), surely above it (stays), or open", **(TWICE | EVERY_MODEL))  # fmt: skip
@states_attention
def test_the_answer_of_query_and_keys_together(claim: Claim, study: Study) -> Verdict:
    """The text cites the logit of Gemma-3-12B alone; in the table of Gemma-2-9B 1.57 of 4.25 remain."""

    def find(evidence: Evidence, _: str) -> str:
        verdict = mean_is_not_positive(shift(evidence, "qk", "dlogit"), claim.margin())(level=claim.level)
        return FINDINGS.get(verdict.outcome, "open")

    evidence = study.binding(claim)
    means = {name: float(shift(evidence, name, "dlogit").mean()) for name in evidence.settings["conditions"]}
    numbers = ", ".join(f"{name} {mean:.2f}" for name, mean in means.items())
    return report_at_readouts(claim, study, find, f"mean dlogit: {numbers}", means["qk"])


@row("binding.key_dominance",
     "A shift of keys turns attention more than the query's, whose effect is weak, and most of it remains when both are"
     " shifted.",
     kind="ordering", metrics=("dR",), models=(LLAMA_3B, LLAMA_8B), headline=4,
     statistic="dR of both kinds of keys less that of the query, and plus it, above the margin; half of it less the"
     " query's, and plus it, above 0; dR of both together above the margin and above half of the keys'",
     **(TWICE | OTHER_MODELS))  # fmt: skip
def test_keys_dominate(claim: Claim, study: Study) -> Verdict:
    return judge_signature(claim, study, own=key_dominated, other=matching)


@row("binding.signature", "Which signature the model shows: matching, key dominated, or neither.",
     kind="report", metrics=("dR",), statistic="which of the two sets of parts holds, by convention", models=(),
     **(TWICE | EVERY_MODEL))  # fmt: skip
@states_attention
def test_the_signature(claim: Claim, study: Study) -> Verdict:
    """At every candidate readout token, at the levels of the two rows; the number is that of the first."""
    places = study.at_readouts(claim)
    by_place = levels(tuple(places), claim.level)

    def find(evidence: Evidence, place: str) -> str:
        for name, parts in (("matching", matching), ("key-dominated", key_dominated)):
            if all_of("ordering", parts(claim, places[place], evidence), level=by_place[place]).outcome == "REPLICATED":
                return name
        return "neither"

    q, k = (shift(study.binding(claim), name, "dR").mean() for name in ("q", "k_both"))
    numbers = f"mean dR by the query {q:.2f}, by both kinds of keys {k:.2f}"
    return report_at_readouts(claim, study, find, numbers, float(k - q))


@row("binding.slot_attended",
     "How often slot i leads in the attention of group B before any edit: the ceiling of Switch.",
     kind="report", metrics=("switch",), models=(), statistic="share of heads and prompts whose largest slot is i; in"
     " most prompts or in few, with the attention of all heads together", **ROW)  # fmt: skip
@states_attention
def test_the_attended_slot(claim: Claim, study: Study) -> Verdict:
    """A switch starts at slot i, so this share bounds the share of switches."""

    def find(evidence: Evidence, _: str) -> str:
        return "in-most" if led_by_slot_i(evidence)[1] > MOST else "in-few"

    by_head, by_prompt = led_by_slot_i(study.binding(claim))
    numbers = f"slot i leads in {by_head:.0%} of heads and prompts, and in {by_prompt:.0%} of prompts, heads together"
    return report_at_readouts(claim, study, find, numbers, by_head)


def report_at_readouts(
    claim: Claim, study: Study, find: Callable[[Evidence, str], str], numbers: str, measured: float
) -> Verdict:
    """Report the finding at every candidate readout token; `numbers` and `measured` are those of the first."""
    places = study.at_readouts(claim)
    findings = {place: find(place_study.binding(claim), place) for place, place_study in places.items()}
    is_same = len(set(findings.values())) == 1
    by_place = ", ".join(f"{finding} {place}" for place, finding in findings.items())
    finding = next(iter(findings.values())) if is_same else by_place
    n = shift(study.binding(claim), "q", "dR").shape[-1]
    return reported(finding, f"{finding}: {numbers}", measured=measured, n=n)
