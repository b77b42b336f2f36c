"""Beyond the paper: questions that a reviewer would ask about its binding IDs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from claims.catalogue import row
from claims.shifts import exceeds_draws, mean_is_above, mean_is_zero
from rebinding.evidence import Evidence
from rebinding.experiments.binding.summary import shift
from rebinding.experiments.binding.swap_labels import label_shift, request_label_exchange
from rebinding.paper.claim import Claim, Metric
from rebinding.study.study import Study
from rebinding.verdicts import Verdict, effect, guarded, reported
from rebinding.verdicts.estimates import Array
from rebinding.verdicts.sentences import Part, all_of

SECTION = "robust"
MOST = 0.9
OURS: dict[str, Any] = {"source": "beyond the paper", "models": (), "group": "B"}
RANDOM: Mapping[str, str] = {
    "q": "matched_q",
    "k_both": "matched_k",
    "k_box": "matched_k_box",
    "k_object": "matched_k_object",
    "qk": "matched_qk",
}
"""The five shifts, each with its random directions of the same length."""
JUDGED = ("q", "k_both")
"""The shifts that redirect if slots are matched; keys of boxes alone, and query and keys together, need not."""
EPSILONS = (1e-9, 1e-6, 1e-3)
PUBLISHED = "1e-09"
"""The name of the published epsilon of dR."""
OPEN = "open"
"""The decision that contradicts no other."""


@row("beyond.random_logits",
     "The query's shift, and the keys' shift, move the answer toward the other slot more than nine in ten random"
     " directions of their length move it either way.",
     kind="ordering", metrics=("dlogit",), unit="direction draws", n=30,
     statistic="share of random directions whose mean dlogit is smaller, whatever its sign; beside it, the share for"
     " keys of boxes alone, keys of objects alone, and query and keys together",
     where="group B, keys of its KV groups, at the readout; raw projections; slot 1 to 0", **OURS)  # fmt: skip
def test_shifts_move_logits_more_than_random_directions(claim: Claim, study: Study) -> Verdict:
    evidence = study.binding(claim, "random directions")
    smaller = {name: exceeds_draws(evidence, name, random, "dlogit", claim.margin()) for name, random in RANDOM.items()}
    parts: dict[str, Part] = {
        name: partial(effect, smaller[name], above=MOST, margin=0.0, unit=claim.unit) for name in JUDGED
    }
    verdict = all_of(claim.kind, parts, level=claim.level)
    shares = ", ".join(f"{name} {smaller[name].mean():.2f}" for name in RANDOM if name not in JUDGED)
    return replace(verdict, reason=f"{verdict.reason}; the share for {shares}")


@row("beyond.swap_label_keys",
     "Group B reads binding IDs at the swap's labels too: exchanging them there turns its attention to the other label,"
     " and the answer to the other object.",
     kind="effect", metrics=("dR", "dlogit"), n=180, unit="nested", procedure="controlled",
     statistic="mean change of the log ratio of attention on the swap's two labels, and of the objects' logits, toward"
     " the asked box's own; sets of directions crossed with units of one example of every ordered pair of slots",
     where="each head of group B, at the readout; raw keys at the two labels of the swap; prompts about a box of the"
     " swap", **OURS)  # fmt: skip
def test_binding_ids_are_read_at_the_labels_of_the_swap(claim: Claim, study: Study) -> Verdict:
    evidence = study.ask(claim, partial(request_label_exchange, conventions=study.procedure(claim).binding))
    parts: dict[str, Part] = {
        name: mean_is_above(label_shift(evidence, name), claim.margin(name)) for name in claim.metrics
    }
    return all_of(claim.kind, parts, level=claim.level)


@row("beyond.id_not_position",
     "Directions of plain stories redirect in stories whose statements stand elsewhere: they carry the slot, and not"
     " the position.",
     kind="effect", metrics=("dR", "dlogit"), n=180, unit="nested", procedure="controlled",
     statistic="mean dR and dlogit of the query's shift, and mean dR of the keys' shift; directions measured on plain"
     " stories, applied in stories with a sentence about nothing before the first statement and after each",
     where="each head of group B, at the readout; raw projections; read on box and object; all ordered slot pairs",
     **OURS)  # fmt: skip
def test_directions_of_plain_stories_redirect_in_others(claim: Claim, study: Study) -> Verdict:
    gate = study.check_ability_at(study.n(claim), name="counterbalanced", narrative=True)
    return guarded(claim.kind, [gate], lambda: redirects(claim, study.binding(claim, "narrative")))


def redirects(claim: Claim, evidence: Evidence) -> Verdict:
    """The rules of `binding.q_redirects` and `binding.k_redirects`."""
    measured: tuple[tuple[str, Metric], ...] = (("q", "dR"), ("q", "dlogit"), ("k_both", "dR"))
    parts: dict[str, Part] = {
        f"{name} {measure}": mean_is_above(shift(evidence, name, measure), claim.margin(measure))
        for name, measure in measured
    }
    return all_of(claim.kind, parts, level=claim.level)


@row("binding.dr_robust",
     "Whether dR says the same of every shift with another epsilon, and with attention summed over heads first.",
     kind="report", metrics=("dR",), section="binding", source="section 5, methods; ours", models=(), group="B",
     statistic="for each of the five shifts whether mean dR is surely above the margin, below minus the margin or"
     " within both: with an epsilon of 1e-9 (as published), 1e-6 and 1e-3, and of attention summed over heads; two that"
     " differ are a change; the number is the largest change of a mean",
     where="group B, keys of its KV groups, at the readout; raw projections; read on the shifted tokens;"
     " slot 1 to 0")  # fmt: skip
def test_dr_does_not_depend_on_epsilon(claim: Claim, study: Study) -> Verdict:
    """At every candidate readout token; the number is that of the first."""
    places = study.at_readouts(claim)
    differences, changes = [], []
    for place, place_study in places.items():
        for name in RANDOM:
            variants = variants_of_dr(place_study.binding(claim), name)
            decisions = {variant: decide(values, claim.margin(), claim.level) for variant, values in variants.items()}
            published = variants[PUBLISHED].mean()
            differences.append(max(abs(values.mean() - published) for values in variants.values()))
            if len(set(decisions.values()) - {OPEN}) > 1:
                texts = (f"{decision} with {variant}" for variant, decision in decisions.items())
                changes.append(f"{name} {place}: {', '.join(texts)}")
    n = shift(study.binding(claim), "q", "dR").shape[-1]
    reason = f"dR does not say the same: {'; '.join(changes)}" if changes else "dR says the same of every shift"
    return reported("changes" if changes else "keeps", reason, measured=float(max(differences[: len(RANDOM)])), n=n)


def variants_of_dr(evidence: Evidence, condition: str) -> Mapping[str, Array]:
    """dR of a shift with each epsilon, and of attention summed over heads."""
    by_epsilon = {f"{eps:.0e}": shift(evidence, condition, "dR", eps) for eps in EPSILONS}
    return by_epsilon | {"heads summed": shift(evidence, condition, "dR_summed")}


def decide(values: Array, margin: float, level: float) -> str:
    """Where a mean surely lies: toward, away or neither; else open."""
    parts = {
        "toward": mean_is_above(values, margin),
        "away": mean_is_above(-values, margin),
        "neither": mean_is_zero(values, margin),
    }
    decisions = (name for name, part in parts.items() if part(level=level).outcome == "REPLICATED")
    return next(decisions, OPEN)
