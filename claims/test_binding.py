"""Section 5: are binding IDs matched in the queries and keys of group B?"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from claims.catalogue import GEMMA_2, GEMMA_3, LLAMA_3B, LLAMA_8B, row
from claims.conventions import judge_candidates, printed_number
from claims.shifts import (
    EVERY_MODEL,
    KEYS,
    OTHER_MODELS,
    PLACE,
    TWICE,
    mean_exceeds,
    mean_is_above,
    mean_is_zero,
    switches,
    unit_of,
)
from rebinding.experiments.attention import by_token, request_attention
from rebinding.experiments.binding.summary import controls, shift
from rebinding.paper.claim import Claim, Metric
from rebinding.study.study import Study
from rebinding.testing import rows
from rebinding.verdicts import Verdict, effect, not_applicable, value
from rebinding.verdicts.sentences import Part, all_of

SECTION = "binding"
QUARTER = 0.25
ACCORDINGLY = {"source": 'introduction, item 4 ("shifts the final logits accordingly")'}
OVER_RANDOM = "mean dlogit less that of a random direction, by unit"
CONDITIONS = {
    "random": "a random direction added",
    "q": "the query asking for slot j",
    "k_both": "the keys of the two slots exchanged",
    "k_box": "the keys of the two boxes exchanged",
    "k_object": "the keys of the two objects exchanged",
    "qk": "the query shifted and the keys exchanged",
}
MEASURES: tuple[tuple[Metric, str, str], ...] = (
    ("dR", "the log ratio of the attention on slot j to that on slot i changes by the printed amount",
     "mean dR over heads and prompts"),
    ("dlogit", "the logit of slot j's object against slot i's changes by the printed amount",
     "mean dlogit over prompts"),
    ("switch", "the printed share turns from slot i to slot j",
     "share of heads and prompts, or of prompts: which of them was printed is not known"),
)  # fmt: skip


@rows(
    Claim(f"binding.table.{condition}.{measure}", f"With {intervention}, {change}.",
          "the table of the Q/K interventions", "value", (measure,), statistic, PLACE, group="B", needs=("B",),
          condition=condition, printed=f"binding.{condition}.{measure}", reads=(condition,))
    for condition, intervention in CONDITIONS.items()
    for measure, change, statistic in MEASURES)  # fmt: skip
def test_the_printed_table(claim: Claim, study: Study) -> Verdict:
    """The paper does not say which control it prints as random, nor whether heads or examples switch: all candidates
    are judged."""
    condition, (measure,) = str(claim.condition), claim.metrics
    paper = printed_number(claim, study)
    if paper is None:
        return not_applicable(claim.kind, "the paper prints no such number for this model")
    evidence = study.binding(claim)
    conditions = controls(evidence) if condition == "random" else (condition,)
    measures = switches(study.procedure(claim)) if measure == "switch" else (measure,)
    candidates = {f"{name} {unit}": shift(evidence, name, unit) for name in conditions for unit in measures}
    return judge_candidates(
        claim,
        lambda name, level: value(candidates[name], paper, level=level, unit=unit_of(candidates[name])),
        candidates,
    )


@row("binding.q_redirects", "Shifting the query toward another slot turns attention and answer to that slot.",
     kind="effect", metrics=("dR", "dlogit"), statistic="mean change", models=(GEMMA_2, GEMMA_3),
     reads=("q",), **(TWICE | EVERY_MODEL))  # fmt: skip
def test_shifted_queries_redirect(claim: Claim, study: Study) -> Verdict:
    evidence = study.binding(claim)
    parts: dict[str, Part] = {
        name: mean_is_above(shift(evidence, "q", name), claim.margin(name)) for name in claim.metrics
    }
    return all_of(claim.kind, parts, level=claim.level)


@row("binding.k_redirects", "Exchanging the keys of two slots turns attention to the other slot.",
     kind="effect", metrics=("dR",), statistic="mean change", models=(GEMMA_2, LLAMA_3B, LLAMA_8B),
     reads=("k_both",), **(TWICE | EVERY_MODEL))  # fmt: skip
def test_shifted_keys_redirect(claim: Claim, study: Study) -> Verdict:
    return mean_is_above(shift(study.binding(claim), "k_both", "dR"), claim.margin())(level=claim.level)


@row("binding.shifts_reach_the_answer.query",
     "Shifting the query moves the answer toward the other slot's object more than a random direction does.",
     kind="ordering", metrics=("dlogit",), statistic=OVER_RANDOM, condition="q", reads=("q",),
     models=(GEMMA_2, GEMMA_3),
     **(TWICE | ACCORDINGLY))  # fmt: skip
@row("binding.shifts_reach_the_answer.keys",
     "Exchanging the keys of two slots moves the answer toward the other slot's object more than a random direction"
     " does.",
     kind="ordering", metrics=("dlogit",), statistic=OVER_RANDOM, condition="k_both", reads=("k_both",),
     models=(GEMMA_2, LLAMA_3B, LLAMA_8B), **(TWICE | ACCORDINGLY))  # fmt: skip
def test_shifts_reach_the_answer(claim: Claim, study: Study) -> Verdict:
    """Each control may be the printed one; of several draws it is the mean."""
    evidence = study.binding(claim)
    values = shift(evidence, str(claim.condition), "dlogit")

    def judge(name: str, level: float) -> Verdict:
        random = shift(evidence, name, "dlogit")
        mean = random.mean(axis=0) if random.ndim > 1 else random  # (unit,)
        return mean_exceeds(values, mean, claim.margin())(level=level)

    return judge_candidates(claim, judge, controls(evidence))


@row("binding.box_keys_address_only",
     "Exchanging the keys of the boxes alone turns attention and leaves the answer.",
     kind="effect", metrics=("dR", "dlogit"), statistic="mean change", models=(GEMMA_2,), reads=("k_box",),
     **TWICE)  # fmt: skip
def test_box_keys_address_and_do_not_answer(claim: Claim, study: Study) -> Verdict:
    evidence = study.binding(claim)
    attention, answer = (shift(evidence, "k_box", name) for name in ("dR", "dlogit"))
    parts = {"dR": mean_is_above(attention, claim.margin("dR")), "dlogit": mean_is_zero(answer, claim.margin("dlogit"))}
    return all_of(claim.kind, parts, level=claim.level)


@row("binding.object_keys_read_out",
     "Exchanging the keys of the objects moves the answer more than exchanging those of the boxes, or those of both.",
     kind="ordering", metrics=("dlogit",), statistic="paired difference to both other exchanges of keys",
     models=(GEMMA_2,), reads=("k_object", "k_box", "k_both"), **TWICE)  # fmt: skip
def test_object_keys_move_the_answer_most(claim: Claim, study: Study) -> Verdict:
    evidence = study.binding(claim)
    objects, margin = shift(evidence, "k_object", "dlogit"), claim.margin()
    parts = {
        f"over {keys}": mean_exceeds(objects, shift(evidence, keys, "dlogit"), margin) for keys in ("k_box", "k_both")
    }
    return all_of(claim.kind, parts, level=claim.level)


@row("binding.q_strongest", "The query shift moves attention and answer more than any shift of keys.",
     kind="ordering", metrics=("dR", "dlogit"), statistic="paired difference to every shift of keys", models=(),
     reads=("q", *KEYS), **(TWICE | OTHER_MODELS))  # fmt: skip
def test_the_query_is_the_strongest(claim: Claim, study: Study) -> Verdict:
    evidence = study.binding(claim)
    parts = {
        f"{name} over {keys}": mean_exceeds(shift(evidence, "q", name), shift(evidence, keys, name), claim.margin(name))
        for name in claim.metrics
        for keys in KEYS
    }
    return all_of(claim.kind, parts, level=claim.level)


@row("binding.both_keys_most",
     "Exchanging the keys of boxes and objects turns attention more than exchanging those of either.",
     kind="ordering", metrics=("dR",), statistic="paired difference to each", models=(), reads=KEYS,
     **TWICE)  # fmt: skip
def test_both_kinds_of_keys_move_attention_most(claim: Claim, study: Study) -> Verdict:
    evidence = study.binding(claim)
    both, margin = shift(evidence, "k_both", "dR"), claim.margin()
    parts = {f"over {keys}": mean_exceeds(both, shift(evidence, keys, "dR"), margin) for keys in ("k_box", "k_object")}
    return all_of(claim.kind, parts, level=claim.level)


@row("beyond.mass",
     "Group B gives more than a quarter of its attention to boxes and objects of the context, of which dR speaks.",
     source="beyond the paper", kind="effect", metrics=("probability",), group="B", models=(), section="robust",
     statistic="attention on boxes and objects of the context, mean over heads and prompts; beside it, on the"
     " question's box", where="group B, at the readout")  # fmt: skip
def test_group_b_looks_at_the_context(claim: Claim, study: Study) -> Verdict:
    """The reason also gives the attention on the question's box, about which dR says nothing."""
    attention = by_token(study.ask(claim, partial(request_attention, group="B", like=claim.procedure)))
    context = np.sum([attention[name] for name in attention if name.startswith("context_")], axis=0)  # (prompt,)
    verdict = effect(context, above=QUARTER, margin=claim.margin(), support=(0.0, 1.0))
    return replace(verdict, reason=f"{verdict.reason}; the question's box has {attention['question_box'].mean():.2f}")
