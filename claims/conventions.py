"""Judge rows of sections 4.2 and 5 under every convention that the paper may have used, and name the heads of B."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import wraps

from claims.catalogue import Test
from claims.parts import judge_studies
from rebinding.evidence import Evidence
from rebinding.experiments.binding.summary import attention_on_slots, share_of_examples
from rebinding.paper.claim import Claim
from rebinding.study.study import Study
from rebinding.verdicts import GateFailed, Verdict
from rebinding.verdicts.gates import LEAST_MASS

SHARED_KEYS = (
    "one KV head: the keys of group B are those of every head of its layers, so this edit does not separate B from the"
    " others; the controlled row edits the keys as a single head sees them"
)


def judge_row(claim: Claim, study: Study, test: Test) -> Verdict:
    """The verdict of a row; of sections 4.2 and 5 under every convention that the paper may have used."""
    if not claim.reads:
        return test(claim, study)
    verdict = judge_studies(claim, test, study.candidates(claim))
    if claim.section == "roles":
        return verdict
    verdict = with_attention(claim, verdict, study.at_readouts(claim))
    return verdict if set(claim.reads) == {"q"} else with_shared_keys(claim, verdict, study)


def states_attention(test: Test) -> Test:
    """Add the attention of the heads of B to the reason of a row that only reports."""

    @wraps(test)
    def judge(claim: Claim, study: Study) -> Verdict:
        readouts = study.at_readouts(claim)
        return with_shared_keys(claim, with_attention(claim, test(claim, study), readouts), study)

    return judge


def with_attention(claim: Claim, verdict: Verdict, readouts: Mapping[str, Study]) -> Verdict:
    """The verdict; its reason also gives, for every head of B, the attention on slots and how often slot i leads."""
    if not verdict.judged:
        return verdict
    texts = []
    for place, study in readouts.items():
        try:
            text = attention_by_head(study.binding(claim))
        except GateFailed:  # this token has no valid evidence
            continue
        texts.append(f"{place}, {text}" if len(readouts) > 1 else text)
    return replace(verdict, reason="; ".join((verdict.reason, *texts)))


def with_shared_keys(claim: Claim, verdict: Verdict, study: Study) -> Verdict:
    """The verdict; its reason also says what an edit of the keys of KV groups reaches if a layer has one KV head."""
    if not verdict.judged or not study.has_one_kv_head or study.procedure(claim).binding.scope != "group":
        return verdict
    return replace(verdict, reason=f"{verdict.reason}; {SHARED_KEYS}")


def attention_by_head(evidence: Evidence) -> str:
    """The attention of every head of B on slots i and j before any edit, and the heads that are left out."""
    table = attention_on_slots(evidence)
    shares = [f"{line.layer}.{line.head} {line.share:.2g} ({line.leads:.0%})" for line in table.itertuples()]
    text = f"attention on slots i and j before any edit (and how often slot i leads) by head of B: {', '.join(shares)}"
    included = set(zip(table["layer"], table["head"], strict=True))
    heads = evidence.settings.get("heads", ())
    excluded = [f"{layer}.{head}" for layer, head in heads if (layer, head) not in included]
    return f"{text}; left out with less than {LEAST_MASS:.0%}: {', '.join(excluded)}" if excluded else text


def led_by_slot_i(evidence: Evidence) -> tuple[float, float]:
    """How often slot i leads before any edit: the share of heads and prompts, and of prompts with heads summed."""
    return float(attention_on_slots(evidence)["leads"].mean()), share_of_examples(evidence)
