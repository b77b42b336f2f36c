"""Section 5: are binding IDs matched in the queries and keys of group B?"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from claims.rows import judges
from claims.samples import correct, difference_of_correct, shift
from rebinding.evidence import Evidence
from rebinding.experiments.binding.conditions import PUBLISHED_RANDOM
from rebinding.paper.claim import Claim
from rebinding.study.study import Study
from rebinding.verdicts import Verdict, effect, no_effect, not_applicable, ordering, value, value_unidentified
from rebinding.verdicts.sentences import LEVEL, Part, all_of

CONDITIONS = {
    "random": "a random direction added",
    "q": "the query asking for slot j",
    "k_both": "the keys of the two slots exchanged",
    "k_box": "the keys of the two boxes exchanged",
    "k_object": "the keys of the two objects exchanged",
    "qk": "the query shifted and the keys exchanged",
}
MEASURES = {
    "dR": "the log ratio of the attention on slot j to that on slot i changes by the printed amount",
    "dlogit": "the logit of slot j's object against slot i's changes by the printed amount",
    "switch": "the printed share of heads turns from slot i to slot j",
}
ROW: dict[str, Any] = {
    "source": "section 5, results",
    "where": "heads of group B, at the readout; raw projections; read on box and object tokens; from slot 1 to slot 0",
    "groups": ("B",),
}
TABLE = {
    f"{condition}.{measure}": Claim(
        f"binding.table.{condition}.{measure}",
        f"With {said}, {what}.",
        kind="value",
        metrics=(measure,),
        statistic=f"mean {measure} over heads and prompts",
        **(ROW | {"source": "the table of the Q/K interventions"}),
    )
    for condition, said in CONDITIONS.items()
    for measure, what in MEASURES.items()
}
Q_REDIRECTS = Claim(
    "binding.q_redirects",
    "Shifting the query toward another slot turns attention and answer to that slot.",
    kind="effect",
    metrics=("dR", "dlogit"),
    statistic="mean change",
    asserted=("gemma2-9b", "gemma3-12b"),
    **ROW,
)
K_REDIRECTS = Claim(
    "binding.k_redirects",
    "Exchanging the keys of two slots turns attention to the other slot.",
    kind="effect",
    metrics=("dR",),
    statistic="mean change",
    **ROW,
)
BOX_KEYS = Claim(
    "binding.box_keys_address_only",
    "Exchanging the keys of the boxes alone turns attention and leaves the answer.",
    kind="effect",
    metrics=("dR", "dlogit"),
    statistic="mean change",
    asserted=("gemma2-9b",),
    **ROW,
)
OBJECT_KEYS = Claim(
    "binding.object_keys_read_out",
    "Of all shifts, exchanging the keys of the objects alone moves the answer most.",
    kind="ordering",
    metrics=("dlogit",),
    statistic="paired difference to every other condition",
    asserted=("gemma2-9b",),
    **ROW,
)
CANCELS = Claim(
    "binding.qk_cancels",
    "Shifting query and keys together leaves attention where it was, and switches no more heads than a random shift.",
    kind="no-effect",
    metrics=("dR", "switch"),
    statistic="mean change of dR, and paired difference of switches to the random shift of both",
    asserted=("gemma2-9b", "gemma3-12b"),
    **ROW,
)
DOMINANCE = Claim(
    "binding.key_dominance",
    "Keys turn attention more than the query does, the query hardly does, and both together do not cancel.",
    kind="ordering",
    metrics=("dR",),
    statistic="paired difference, and means",
    asserted=("llama3.2-3b", "llama3.1-8b"),
    **ROW,
)
Q_STRONGEST = Claim(
    "binding.q_strongest",
    "The query shift moves the answer more than the key shift.",
    kind="ordering",
    metrics=("dlogit",),
    statistic="paired difference",
    asserted=("gemma3-12b",),
    **ROW,
)
BOTH_MOST = Claim(
    "binding.both_keys_most",
    "Exchanging the keys of boxes and objects turns attention more than exchanging those of the objects.",
    kind="ordering",
    metrics=("dR",),
    statistic="paired difference",
    asserted=("gemma2-9b",),
    **ROW,
)
CORRECT_ONLY = Claim(
    "binding.llama3b_correct_only",
    "The interventions do the same on the prompts that the model answers correctly as on all.",
    kind="value",
    metrics=("dR", "dlogit"),
    statistic="mean over correct examples less mean over all, and the printed table of the correct ones",
    asserted=("llama3.2-3b",),
    **(ROW | {"source": "the table of correct examples only"}),
)
SIGNATURE = Claim(
    "binding.signature",
    "Which signature the model shows: matching, key dominated, or neither.",
    kind="report",
    metrics=("dR",),
    statistic="which of the three sets of rules holds",
    asserted=(),
    **ROW,
)


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
    level = LEVEL / len(PUBLISHED_RANDOM)
    evidence = study.binding(claim)
    return value_unidentified(
        {one.name: value(shift(evidence, one.name, measure), paper, level=level) for one in PUBLISHED_RANDOM}
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
        for name, parts in (("matching", matching), ("key dominated", dominated(evidence, margin)))
    }
    name = next((name for name, true in holds.items() if true), "neither")
    reason = f"The signature is: {name}."
    truth = study.truth(claim)
    outcome = "REPLICATED" if truth is None or truth.reason == reason else "NOT REPLICATED"
    return Verdict(claim.kind, outcome, reason, measured=float(np.mean(k - q)), n=len(q))
