"""Section 5: are binding IDs matched in the queries and keys of group B?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from claims.parts import SHARES, at_every_readout, of_candidates
from claims.rows import judges
from claims.shifts import half_of, more, no_larger, no_more, nothing, over, switches, unit_of
from rebinding.evidence import Evidence
from rebinding.experiments.attention.summary import by_token
from rebinding.experiments.binding.summary import Array, controls, correct, difference_of_correct, shift
from rebinding.paper.claim import Claim, Metric
from rebinding.paper.numbers import PublishedNumber
from rebinding.paper.rows.binding import (
    BOTH_MOST,
    BOX_KEYS,
    CANCELS,
    CORRECT_ONLY,
    DOMINANCE,
    K_REDIRECTS,
    MASS,
    OBJECT_KEYS,
    Q_REDIRECTS,
    Q_STRONGEST,
    SIGNATURE,
    TABLE,
    both,
)
from rebinding.study.attention import looked
from rebinding.study.study import Study
from rebinding.verdicts import Verdict, effect, not_applicable, reported, value
from rebinding.verdicts.effects import Support
from rebinding.verdicts.sentences import Part, all_of, any_of

KEYS = ("k_both", "k_box", "k_object")
QUARTER = 0.25


@judges(*TABLE.values())
@at_every_readout("binding")
def test_the_printed_table(claim: Claim, study: Study) -> Verdict:
    """Which control was printed as random, and whether heads or examples switch, is not known: every candidate runs."""
    _, _, condition, measure = claim.id.split(".")
    paper = study.printed(f"binding.{condition}.{measure}")
    if paper is None:
        return not_applicable(claim.kind, "no such number is printed of this model")
    evidence = study.binding(claim)
    rows = controls(evidence) if condition == "random" else (condition,)
    measures = switches(study.procedure(claim)) if measure == "switch" else (measure,)
    candidates = {f"{row} {one}": shift(evidence, row, one) for row in rows for one in measures}
    return of_candidates(
        lambda name, level: value(candidates[name], paper, level=level, unit=unit_of(candidates[name])),
        candidates,
        claim.level,
    )


@judges(*both(Q_REDIRECTS))
@at_every_readout("binding")
def test_shifted_queries_redirect(claim: Claim, study: Study) -> Verdict:
    evidence = study.binding(claim)
    parts: dict[str, Part] = {name: more(shift(evidence, "q", name), claim.margin(name)) for name in claim.metrics}
    return all_of(claim.kind, parts, level=claim.level)


@judges(*both(K_REDIRECTS))
@at_every_readout("binding")
def test_shifted_keys_redirect(claim: Claim, study: Study) -> Verdict:
    return more(shift(study.binding(claim), "k_both", "dR"), claim.margin())(level=claim.level)


@judges(*both(BOX_KEYS))
@at_every_readout("binding")
def test_box_keys_address_and_do_not_answer(claim: Claim, study: Study) -> Verdict:
    evidence = study.binding(claim)
    turned, answered = (shift(evidence, "k_box", name) for name in ("dR", "dlogit"))
    parts = {"dR": more(turned, claim.margin("dR")), "dlogit": nothing(answered, claim.margin("dlogit"))}
    return all_of(claim.kind, parts, level=claim.level)


@judges(*both(OBJECT_KEYS))
@at_every_readout("binding")
def test_object_keys_move_the_answer_most(claim: Claim, study: Study) -> Verdict:
    evidence = study.binding(claim)
    most, margin = shift(evidence, "k_object", "dlogit"), claim.margin()
    parts: dict[str, Part] = {"over k_box": over(most, shift(evidence, "k_box", "dlogit"), margin)}
    for other in ("q", "k_both", "qk"):
        parts[f"not exceeded by {other}"] = no_more(shift(evidence, other, "dlogit"), most, margin)
    return all_of(claim.kind, parts, level=claim.level)


@judges(*both(CANCELS))
@at_every_readout("binding")
def test_query_and_keys_together_cancel(claim: Claim, study: Study) -> Verdict:
    return all_of(claim.kind, cancelled(claim, study, study.binding(claim)), level=claim.level)


def cancelled(claim: Claim, study: Study, evidence: Evidence) -> dict[str, Part]:
    """Both together move attention less than each alone; and nothing by more than a random shift does, in one of the
    senses that the published procedure leaves open.

    Controlled, each alone must move it in the first place. Directions are means over finitely many prompts, and chance
    in the query's meets the same chance in the keys': in a model without slots both together turn attention by an
    amount of order 1 / prompts, always the same way, and each alone by nothing.
    """
    together, margin = shift(evidence, "qk", "dR"), claim.margin("dR")
    parts: dict[str, Part] = {
        f"less attention than {name}": over(shift(evidence, name, "dR"), together, margin) for name in ("q", "k_both")
    }
    if claim.procedure == "controlled":
        parts |= {f"attention by {name}": more(shift(evidence, name, "dR"), margin) for name in ("q", "k_both")}
    senses: dict[str, Part] = {}
    for control in controls(evidence):
        for turned in switches(study.procedure(claim)):
            senses[f"{control}, {turned}"] = partial(all_of, claim.kind, as_random(claim, evidence, control, turned))
    return {**parts, "no more than random": partial(any_of, claim.kind, senses)}


def as_random(claim: Claim, evidence: Evidence, control: str, turned: str) -> dict[str, Part]:
    """What query and keys together do to attention, answer and heads is no larger than what a random shift does."""
    measures: dict[str, tuple[Metric, Support | None]] = {
        "dR": ("dR", None), "dlogit": ("dlogit", None), turned: ("switch", SHARES),
    }  # fmt: skip
    found = {name: (shift(evidence, "qk", name), shift(evidence, control, name)) for name in measures}
    return {
        name: no_larger(*found[name], margin=claim.margin(metric), support=support)
        for name, (metric, support) in measures.items()
    }


@judges(*both(DOMINANCE))
@at_every_readout("binding")
def test_keys_dominate(claim: Claim, study: Study) -> Verdict:
    return all_of(claim.kind, dominated(study.binding(claim), claim.margin("dR")), level=claim.level)


def dominated(evidence: Evidence, margin: float) -> dict[str, Part]:
    """The signature that the paper calls key dominated."""
    q, k, qk = (shift(evidence, name, "dR") for name in ("q", "k_both", "qk"))
    return {"keys over query": over(k, q, margin), "weak query": half_of(q, k), "both together": more(qk, margin)}


@judges(*both(Q_STRONGEST))
@at_every_readout("binding")
def test_the_query_is_the_strongest(claim: Claim, study: Study) -> Verdict:
    evidence = study.binding(claim)
    parts = {
        f"{name} over {keys}": over(shift(evidence, "q", name), shift(evidence, keys, name), claim.margin(name))
        for name in claim.metrics
        for keys in KEYS
    }
    return all_of(claim.kind, parts, level=claim.level)


@judges(*both(BOTH_MOST))
@at_every_readout("binding")
def test_both_kinds_of_keys_move_attention_most(claim: Claim, study: Study) -> Verdict:
    evidence = study.binding(claim)
    return over(shift(evidence, "k_both", "dR"), shift(evidence, "k_object", "dR"), claim.margin())(level=claim.level)


@judges(CORRECT_ONLY)
@at_every_readout("binding")
def test_correct_examples_are_like_all(claim: Claim, study: Study) -> Verdict:
    evidence = study.binding(claim)
    right = correct(evidence, "q")
    parts: dict[str, Part] = {
        "qk dR, still positive": more(shift(evidence, "qk", "dR")[..., right], claim.margin("dR"))
    }
    for condition in ("q", "k_both", "qk"):
        for name in claim.metrics:
            values = shift(evidence, condition, name)
            same = nothing(difference_of_correct(values, right), claim.margin(name))
            parts[f"{condition} {name}, correct against all"] = same
            paper = study.printed(f"correct_only.{condition}.{name}")
            if paper is not None:
                parts[f"{condition} {name}, printed"] = printed(values[..., right], paper)
    return all_of(claim.kind, parts, level=claim.level)


def printed(values: Array, paper: PublishedNumber) -> Part:
    """Held against a number of which it is not printed how many examples are behind it: as many as ours."""
    return partial(value, values, paper, unit=unit_of(values), paper_n=values.shape[-1])


@judges(*both(SIGNATURE))
def test_the_signature(claim: Claim, study: Study) -> Verdict:
    """At every token that may have been read; the number is of the first."""
    places = study.at_readouts(study.procedure(claim).binding)
    shown = {place: signature(there.binding(claim), claim.margin()) for place, there in places.items()}
    same = len(set(shown.values())) == 1
    name = next(iter(shown.values())) if same else ", ".join(f"{shown[place]} {place}" for place in shown)
    q, k = (shift(study.binding(claim), one, "dR") for one in ("q", "k_both"))
    return reported(name, f"The signature is: {name}.", measured=float(np.mean(k - q)), n=q.shape[-1])


def signature(evidence: Evidence, margin: float) -> str:
    """Which set of rules holds."""
    q, k, qk = (shift(evidence, name, "dR") for name in ("q", "k_both", "qk"))
    signatures: dict[str, Callable[[], dict[str, Part]]] = {
        "matching": lambda: {"query": more(q, margin), "keys": more(k, margin), "both": nothing(qk, margin)},
        "key-dominated": lambda: dominated(evidence, margin),
    }
    holding = (name for name, parts in signatures.items() if all_of("ordering", parts()).outcome == "REPLICATED")
    return next(holding, "neither")


@judges(MASS)
def test_group_b_looks_at_the_context(claim: Claim, study: Study) -> Verdict:
    """The rest of what B may look at matters too: where the question's box has much of it, dR is silent on that."""
    found = by_token(study.ask(claim, partial(looked, group="B", like=claim.procedure)))
    context = np.sum([found[name] for name in found if name.startswith("context_")], axis=0)  # (prompt,)
    judged = effect(context, above=QUARTER, margin=claim.margin(), support=(0.0, 1.0))
    return replace(judged, reason=f"{judged.reason}; the question's box has {found['question_box'].mean():.2f}")
