"""Section 5: are binding IDs matched in the queries and keys of group B?"""

from __future__ import annotations

from functools import partial

import numpy as np

from claims.rows import judges
from rebinding.evidence import Evidence
from rebinding.experiments.binding.summary import RANDOM_CONTROLS, correct, difference_of_correct, shift
from rebinding.paper.claim import Claim
from rebinding.paper.rows.binding import (
    BOTH_MOST,
    BOX_KEYS,
    CANCELS,
    CORRECT_ONLY,
    DOMINANCE,
    K_REDIRECTS,
    OBJECT_KEYS,
    Q_REDIRECTS,
    Q_STRONGEST,
    SIGNATURE,
    TABLE,
)
from rebinding.study.study import Study
from rebinding.verdicts import Verdict, effect, no_effect, not_applicable, ordering, reported, value, value_unidentified
from rebinding.verdicts.sentences import LEVEL, Part, all_of


@judges(*TABLE.values())
def test_the_printed_table(claim: Claim, study: Study) -> Verdict:
    _, _, condition, measure = claim.id.split(".")
    if condition == "random":
        return random_row(claim, study, measure)
    paper = study.printed(f"binding.{condition}.{measure}")
    if paper is None:
        return not_applicable(claim.kind, "the paper prints no table for this model")
    return value(shift(study.binding(claim), condition, measure), paper)


def random_row(claim: Claim, study: Study, measure: str) -> Verdict:
    """The printed random row is held against every control that it may be."""
    paper = study.printed(f"binding.random.{measure}")
    if paper is None:
        return not_applicable(claim.kind, "which control was printed is not known, and a plant prints none")
    level = LEVEL / len(RANDOM_CONTROLS)
    evidence = study.binding(claim)
    return value_unidentified(
        {one: value(shift(evidence, one, measure), paper, level=level) for one in RANDOM_CONTROLS}
    )


@judges(Q_REDIRECTS)
def test_shifted_queries_redirect(claim: Claim, study: Study) -> Verdict:
    evidence = study.binding(claim)
    return all_of(
        claim.kind,
        {name: partial(effect, shift(evidence, "q", name), margin=claim.margins[name]) for name in claim.metrics},
    )


@judges(K_REDIRECTS)
def test_shifted_keys_redirect(claim: Claim, study: Study) -> Verdict:
    return effect(shift(study.binding(claim), "k_both", "dR"), margin=claim.margin())


@judges(BOX_KEYS)
def test_box_keys_address_and_do_not_answer(claim: Claim, study: Study) -> Verdict:
    evidence = study.binding(claim)
    return all_of(
        claim.kind,
        {
            "dR": partial(effect, shift(evidence, "k_box", "dR"), margin=claim.margin("dR")),
            "dlogit": partial(no_effect, shift(evidence, "k_box", "dlogit"), margin=claim.margin("dlogit")),
        },
    )


@judges(OBJECT_KEYS)
def test_object_keys_move_the_answer_most(claim: Claim, study: Study) -> Verdict:
    evidence = study.binding(claim)
    most = shift(evidence, "k_object", "dlogit")
    return all_of(
        claim.kind,
        {
            f"over {other}": partial(ordering, most, shift(evidence, other, "dlogit"), margin=claim.margin())
            for other in ("q", "k_both", "k_box", "qk")
        },
    )


@judges(CANCELS)
def test_query_and_keys_together_cancel(claim: Claim, study: Study) -> Verdict:
    evidence = study.binding(claim)
    more = shift(evidence, "qk", "switch") - shift(evidence, "random_qk", "switch")
    return all_of(
        claim.kind,
        {
            "attention stays": partial(no_effect, shift(evidence, "qk", "dR"), margin=claim.margin("dR")),
            "no more switches than random": partial(effect, -more, above=-claim.margin("switch"), margin=0.0),
        },
    )


def dominated(evidence: Evidence, margin: float) -> dict[str, Part]:
    """The signature that the paper calls key dominated."""
    q, k, qk = (shift(evidence, name, "dR") for name in ("q", "k_both", "qk"))
    return {
        "keys over query": partial(ordering, k, q, margin=margin),
        "query near zero": partial(no_effect, q, margin=margin),
        "both together": partial(effect, qk, margin=margin),
    }


@judges(DOMINANCE)
def test_keys_dominate(claim: Claim, study: Study) -> Verdict:
    return all_of(claim.kind, dominated(study.binding(claim), claim.margin()))


@judges(Q_STRONGEST)
def test_the_query_is_the_strongest(claim: Claim, study: Study) -> Verdict:
    evidence = study.binding(claim)
    return ordering(shift(evidence, "q", "dlogit"), shift(evidence, "k_both", "dlogit"), margin=claim.margin())


@judges(BOTH_MOST)
def test_both_kinds_of_keys_move_attention_most(claim: Claim, study: Study) -> Verdict:
    evidence = study.binding(claim)
    return ordering(shift(evidence, "k_both", "dR"), shift(evidence, "k_object", "dR"), margin=claim.margin())


@judges(CORRECT_ONLY)
def test_correct_examples_are_like_all(claim: Claim, study: Study) -> Verdict:
    evidence = study.binding(claim)
    right = correct(evidence, "q")
    parts: dict[str, Part] = {}
    for condition in ("q", "k_both", "qk"):
        for name in claim.metrics:
            values = shift(evidence, condition, name)
            same = difference_of_correct(values, right)
            parts[f"{condition} {name}, correct against all"] = partial(no_effect, same, margin=claim.margin(name))
            paper = study.printed(f"correct_only.{condition}.{name}")
            if paper is not None:
                printed = partial(value, values[right], paper, paper_n=int(right.sum()))
                parts[f"{condition} {name}, printed"] = printed
    return all_of(claim.kind, parts)


@judges(SIGNATURE)
def test_the_signature(claim: Claim, study: Study) -> Verdict:
    evidence = study.binding(claim)
    q, k, qk = (shift(evidence, name, "dR") for name in ("q", "k_both", "qk"))
    margin = claim.margin()
    matching: dict[str, Part] = {
        "query": partial(effect, q, margin=margin),
        "keys": partial(effect, k, margin=margin),
        "both": partial(no_effect, qk, margin=margin),
    }
    holds = {
        name: all_of("ordering", parts).outcome == "REPLICATED"
        for name, parts in (("matching", matching), ("key-dominated", dominated(evidence, margin)))
    }
    name = next((name for name, true in holds.items() if true), "neither")
    return reported(name, f"The signature is: {name}.", measured=float(np.mean(k - q)), n=len(q))
