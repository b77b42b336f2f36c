"""Claims about all models of a run, judged from the verdicts of claims on each model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from claims.catalogue import catalogue, row
from rebinding.paper.claim import Claim
from rebinding.verdicts import Verdict
from rebinding.verdicts.judgement import Judgement
from rebinding.verdicts.outcome import ConventionVerdict, Outcome

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
     "Over the models of a run: under one and the same convention query and keys match in Gemma models, and keys"
     " dominate in Llama models.",
     source="section 6, binding ID matching", kind="ordering", metrics=("dR",), group="B", headline=5,
     statistic="by convention, binding.qk_cancels on every Gemma, and binding.key_dominance on every Llama",
     where="group B, keys of its KV groups, at the readout; raw projections; read on the shifted tokens; slot 1 to 0",
     controlled={
         "where": "each head of group B, at the readout; raw projections; read on box and object; all ordered slot"
         " pairs",
         "unit": "nested",
         "n": 180,
     })  # fmt: skip
def judge_families(claim: Claim, judgements: Mapping[str, Judgement]) -> Verdict:
    """REPLICATED if under one convention every model shows its family's signature, and under none a model surely shows
    the other family's. NOT REPLICATED if under every convention some model surely does not show its own, at 5 % over
    the models. Conventions are matched by name; one that is not judged on every model is left out."""
    verdicts = {model: judgement.as_verdict() for model, judgement in judgements.items()}
    by_model = {model: {entry.name: entry for entry in verdict.conventions} for model, verdict in verdicts.items()}
    common = [name for name in next(iter(by_model.values())) if all(name in entries for entries in by_model.values())]
    if not common:
        unjudged = next(((model, verdict) for model, verdict in verdicts.items() if not verdict.judged), None)
        model, verdict = unjudged or next(iter(verdicts.items()))
        outcome: Outcome = "INCONCLUSIVE" if unjudged is None else verdict.outcome
        return _decided(claim, outcome, verdict, model, "no convention is judged on every model")
    level = claim.level / len(verdicts)
    holding = [name for name in common if all(own[name].outcome == "REPLICATED" for own in by_model.values())]
    refuting = {name: [model for model, own in by_model.items() if _is_refuted(own[name], level)] for name in common}
    others = [(model, entry.name) for model, own in by_model.items() for entry in own.values() if entry.shows_other]

    def weakest(models: Iterable[str], name: str) -> str:
        return min(models, key=lambda model: (1.0 if (p := by_model[model][name].p_value) is None else p, model))

    if holding and not others:
        name = holding[0]
        model = weakest(by_model, name)
        return _decided(
            claim, "REPLICATED", verdicts[model], model, f"every model shows its family's signature ({name})"
        )
    if all(refuting.values()):
        name = common[0]
        model = weakest(refuting[name], name)
        return _decided(claim, "NOT REPLICATED", verdicts[model], model, f"it does not show its signature ({name})")
    if others:
        model, name = others[0]
        return _decided(
            claim, "INCONCLUSIVE", verdicts[model], model, f"it shows the other family's signature ({name})"
        )
    model = next(model for model, own in by_model.items() if own[common[0]].outcome != "REPLICATED")
    return _decided(claim, "INCONCLUSIVE", verdicts[model], model, "its signature is open")


def _is_refuted(entry: ConventionVerdict, level: float) -> bool:
    return entry.p_value is not None and entry.p_value <= level


def _decided(claim: Claim, outcome: Outcome, of_model: Verdict, model: str, why: str) -> Verdict:
    """The verdict, with the numbers of the model that decides."""
    reason = f"{model}: {why}; {of_model.reason}"
    return replace(
        of_model, kind=claim.kind, outcome=outcome, reason=reason, part=(model, *of_model.part), conventions=()
    )
