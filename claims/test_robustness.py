"""Beyond the paper: whether the conclusions survive a better experiment."""

from __future__ import annotations

from functools import partial
from typing import Any

from claims.catalogue import row
from claims.conventions import circuit_exceeds_random
from claims.shifts import exceeds_draws, mean_is_above, mean_is_zero
from rebinding.experiments.binding.summary import shift
from rebinding.paper.claim import Claim
from rebinding.study.study import Study
from rebinding.verdicts import Verdict, effect, guarded
from rebinding.verdicts.sentences import Part, all_of

SECTION = "robust"
MOST = 0.9
OURS: dict[str, Any] = {"source": "beyond the paper", "models": ()}
BINDING = OURS | {
    "where": "group B, keys of its KV groups, at the readout; raw projections; slot 1 to 0, unless said otherwise",
    "group": "B",
}
CIRCUIT = OURS | {"kind": "ordering", "metrics": ("accuracy",), "unit": "nested"}
OVER_RANDOM = "difference of hits to random circuits"


@row("robust.no_kv_leak",
     "Exchanged keys move the answer as much through the chosen heads alone as through their whole KV groups.",
     kind="no-effect", metrics=("dlogit",),
     statistic="paired difference, keys of whole groups exchanged less keys as the chosen heads see them",
     **BINDING)  # fmt: skip
def test_shifted_keys_do_not_leak(claim: Claim, study: Study) -> Verdict:
    groups, heads = (shift(study.binding(claim, how), "k_both", "dlogit") for how in ("published", "isolated"))
    return mean_is_zero(groups - heads, claim.margin())(level=claim.level)


@row("robust.third_slot",
     "Query and keys also redirect to the third slot, which the swap had nothing to do with.",
     kind="effect", metrics=("dR",), statistic="mean change from slot 1 toward slot 2", **BINDING)  # fmt: skip
def test_shifts_reach_the_third_slot(claim: Claim, study: Study) -> Verdict:
    evidence = study.binding(claim, "third slot")
    return all_of(
        claim.kind,
        {name: mean_is_above(shift(evidence, name, "dR"), claim.margin()) for name in ("q", "k_both")},
    )


@row("robust.random_directions",
     "Query and key shifts do more than nine in ten random directions of their length.",
     kind="ordering", metrics=("dR",), unit="direction draws", n=30,
     statistic="share of random directions whose mean change is smaller, whatever its sign", **BINDING)  # fmt: skip
def test_shifts_leave_the_spread_of_random_directions(claim: Claim, study: Study) -> Verdict:
    evidence = study.binding(claim, "random directions")
    parts: dict[str, Part] = {}
    for name, control in (("q", "matched_q"), ("k_both", "matched_k")):
        smaller = exceeds_draws(evidence, name, control, "dR", claim.margin())
        parts[name] = partial(effect, smaller, above=MOST, margin=0.0, unit=claim.unit)
    return all_of(claim.kind, parts)


@row("robust.counterbalanced_mean", "The circuit still beats random ones when the means cannot know a slot.",
     statistic=f"{OVER_RANDOM}, draws crossed with prompts",
     where="readout; other heads held at their mean over counterbalanced prompts", **CIRCUIT)  # fmt: skip
def test_the_circuit_does_not_need_means_that_know_a_slot(claim: Claim, study: Study) -> Verdict:
    return circuit_exceeds_random(claim, study.ablate_circuit(claim, means="counterbalanced"))(level=claim.level)


@row("robust.fresh_prompts",
     "The circuit still beats random ones on words that were never used to find it.",
     statistic=f"{OVER_RANDOM}, mean over the prompts of an answer; draws crossed with answers",
     where="readout; the published test half, and the evaluation third of the counterbalanced design; other heads held"
     " at their mean over prompts of the same design", **CIRCUIT)  # fmt: skip
def test_the_circuit_serves_new_words(claim: Claim, study: Study) -> Verdict:
    """The unit is the word, because a word that the model knows well is answered well in every prompt."""
    splits = {
        "test half": study.ablate_on_other_prompts(claim, name="published", split="test"),
        "evaluation third": study.ablate_on_other_prompts(claim, name="counterbalanced", split="evaluation"),
    }
    parts = {name: circuit_exceeds_random(claim, evidence, study.words(evidence)) for name, evidence in splits.items()}
    return all_of(claim.kind, parts)


@row("robust.more_operations",
     "The circuit found on one swap still beats random ones on a chain of two swaps, and on a move.",
     statistic=f"{OVER_RANDOM}, draws crossed with prompts",
     where="readout; other heads held at their mean over prompts of the same kind", **CIRCUIT)  # fmt: skip
def test_the_circuit_serves_other_operations(claim: Claim, study: Study) -> Verdict:
    n = study.n(claim)
    kinds: dict[str, dict[str, Any]] = {"two swaps": {"operations": 2}, "a move": {"verb": "move"}}
    return guarded(
        claim.kind,
        (study.check_ability_at(n, **options) for options in kinds.values()),
        lambda: all_of(
            claim.kind,
            {
                name: circuit_exceeds_random(claim, study.ablate_on_other_prompts(claim, **options))
                for name, options in kinds.items()
            },
        ),
    )
