"""Claims about all models of a run, judged from the verdicts of claims on each model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from claims.catalogue import catalogue, row
from rebinding.paper.claim import Claim
from rebinding.verdicts import Verdict
from rebinding.verdicts.judgement import Judgement
from rebinding.verdicts.sentences import all_of

SECTION = "binding"
FAMILY_SENTENCES: Mapping[str, str] = MappingProxyType(
    {"gemma": "binding.qk_cancels", "llama": "binding.key_dominance"}
)
"""For each family, the sentence with which a model shows what the paper says about the family."""


def claim_of_family(family: str, claim: Claim) -> Claim:
    """The claim of a family's sentence under the same procedure as a claim about the run."""
    claims = (row.claim for row in catalogue() if row.claim.sentence == FAMILY_SENTENCES[family])
    return next(part for part in claims if part.procedure == claim.procedure)


@row("binding.families_differ",
     "Over the models of a run: in Gemma models query and keys match, and Llama models are dominated by keys.",
     source="section 6, binding ID matching", kind="ordering", metrics=("dR",), group="B", headline=5,
     statistic="what binding.qk_cancels came to on every Gemma, and binding.key_dominance on every Llama",
     where="group B, keys of its KV groups, at the readout; raw projections; read on the shifted tokens; slot 1 to 0",
     controlled={
         "where": "each head of group B, at the readout; raw projections; read on box and object; all ordered slot"
         " pairs",
         "unit": "nested",
         "n": 180,
     })  # fmt: skip
def judge_families(claim: Claim, judgements: Mapping[str, Judgement]) -> Verdict:
    """Every Gemma matches and every Llama is dominated by keys; `judgements` has one per model, by name."""
    return all_of(claim.kind, {model: partial(at_level, judgement) for model, judgement in judgements.items()})


def at_level(judgement: Judgement, *, level: float) -> Verdict:
    """A judgement as a part of a sentence: open if it is refuted at 5 % but not at this stricter level."""
    verdict = judgement.as_verdict()
    is_sure = verdict.p_value is not None and verdict.p_value <= level
    return verdict if is_sure or verdict.outcome != "NOT REPLICATED" else replace(verdict, outcome="INCONCLUSIVE")
