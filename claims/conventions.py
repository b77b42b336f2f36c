"""How rows are judged: under every convention that the paper may have used, and in parts that several rows share.

Rows of sections 4.2 and 5 have candidate conventions; their verdicts name the heads of B.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import TypeVar

from rebinding.evidence import Evidence
from rebinding.experiments.binding.summary import attention_on_slots, share_of_examples
from rebinding.experiments.circuit.summary import by_word, of_circuit, of_random, random_sizes
from rebinding.paper.claim import Claim
from rebinding.paper.numbers import PublishedNumber
from rebinding.study.study import Study
from rebinding.testing import Test
from rebinding.verdicts import GateFailed, Verdict, invalid, ordering, value_unidentified
from rebinding.verdicts.effects import Support
from rebinding.verdicts.gates import LEAST_MASS
from rebinding.verdicts.sentences import Part, under_conventions

NO_OP_GATE = "edits_change_values"
SHARES: Support = (-1.0, 1.0)
"""The range of a difference of two shares."""


def printed_number(claim: Claim, study: Study) -> PublishedNumber | None:
    """The printed number that a claim compares with; None if the paper prints none for this model."""
    return None if claim.printed is None else study.printed(claim.printed)


def circuit_exceeds_random(
    claim: Claim, evidence: Evidence, words: Sequence[str] | None = None, size: str = ""
) -> Part:
    """Hits of the circuit compared with random circuits on the same prompts; with `words`, averaged by word."""
    circuit, random = of_circuit(evidence, "circuit", "hit").astype(float), of_random(evidence, "hit", size)
    if words is not None:
        circuit, random = (by_word(hits, words) for hits in (circuit, random))
    return partial(ordering, circuit, random, unit="nested", support=SHARES, margin=claim.margin("accuracy"))


Name = TypeVar("Name", bound=str)


def judge_candidates(claim: Claim, judge: Callable[[Name, float], Verdict], candidates: Collection[Name]) -> Verdict:
    """The verdict over all candidate conventions. A printed number may belong to a convention that we do not know, so
    it is never refuted. A sentence is refuted if it fails under all of them."""
    if len(candidates) == 1:
        return judge(next(iter(candidates)), claim.level)
    if claim.kind == "value":
        return value_unidentified({name: judge(name, claim.level / len(candidates)) for name in candidates})
    return under_conventions(
        claim.kind, {name: partial(_at_level, judge, name) for name in candidates}, level=claim.level
    )


def _at_level(judge: Callable[[Name, float], Verdict], name: Name, *, level: float) -> Verdict:
    return judge(name, level)


def judge_studies(claim: Claim, test: Test, studies: Mapping[str, Study]) -> Verdict:
    """The verdict of a row over all candidate conventions, each with a study."""

    def judge(name: str, level: float) -> Verdict:
        try:
            return test(replace(claim, level=level), studies[name])
        except GateFailed as failed:  # another candidate may pass this gate
            if failed.gate.name == NO_OP_GATE:  # this gate is a fault under any convention
                raise
            return invalid(claim.kind, failed.gate.name, failed.gate.detail)

    return judge_candidates(claim, judge, studies)


def judge_random_sizes(claim: Claim, evidence: Evidence, judge: Callable[[str], Part]) -> Verdict:
    """The verdict over the sizes that the paper's random circuits may have had; `judge` gives the rule for a size."""
    sizes = random_sizes(evidence)
    return judge_candidates(claim, lambda name, level: judge(sizes[name])(level=level), sizes)


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
