"""Section 4.1: the tokens that groups of the circuit attend to."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from claims.catalogue import row
from claims.conventions import NO_OP_GATE, SHARES, judge_candidates
from rebinding.evidence import Evidence
from rebinding.experiments.attention import by_token, even, request_attention, request_shaped_attention
from rebinding.paper.claim import LEVEL, Claim
from rebinding.paper.numbers import Group
from rebinding.study.study import Study
from rebinding.verdicts import GateFailed, Verdict, effect, ordering
from rebinding.verdicts.sentences import Part, all_of, any_of

SECTION = "circuit"
ROW: dict[str, Any] = {
    "source": "section 4.1, rebinding circuit",
    "kind": "ordering",
    "metrics": ("attention",),
    "statistic": "attention on that token, mean over the group's heads, less an even share, and less that on every"
    " other token with a role before it",
}
A_PLACE, B_PLACE, C_PLACE = "group A, at the readout", "group B, at the readout", "group C, at the question's box"
COUNTERBALANCED = "counterbalanced prompts"
"""The controlled procedure: the place of a token does not tell which one it is."""
TENTH = 0.1
EARLIER = ("swap_asked", "swap_partner", "context_partner")
"""Candidate labels of "the appropriate earlier box": the text does not say which; that of the old statement is none."""


def looks_at(claim: Claim, study: Study, group: Group, token: str, *, level: float = LEVEL) -> Verdict:
    """The group attends to a token more than evenly, and more than to any other token with a role."""
    evidence = study.ask(claim, partial(request_attention, group=group, like=claim.procedure))
    attention = by_token(evidence)
    rivals = {"an even share": even(evidence)} | {name: attention[name] for name in attention if name != token}
    parts: dict[str, Part] = {
        f"{token} over {name}": partial(ordering, attention[token], values, margin=claim.margin(), support=SHARES)
        for name, values in rivals.items()
    }
    return all_of(claim.kind, parts, level=level)


@row("circuit.a_attends_to_object",
     "Group A looks at the answer's object in the context, more than at any other token with a role.",
     where=A_PLACE, group="A", controlled={"where": f"{A_PLACE}; {COUNTERBALANCED}"}, **ROW)  # fmt: skip
def test_a_looks_at_the_answers_object(claim: Claim, study: Study) -> Verdict:
    return looks_at(claim, study, "A", "context_partner_object")


@row("circuit.b_attends_to_question_box", "Group B looks at the question's box more than evenly.",
     where=B_PLACE, group="B", models=(),
     **(ROW | {"statistic": "attention on that token, mean over the group's heads, less an even share"}))  # fmt: skip
def test_b_looks_at_the_questions_box(claim: Claim, study: Study) -> Verdict:
    evidence = study.ask(claim, partial(request_attention, group="B", like=claim.procedure))
    box = by_token(evidence)["question_box"]
    return ordering(box, even(evidence), margin=claim.margin(), support=SHARES, level=claim.level)


@row("circuit.c_attends_to_earlier_box",
     "Group C looks at the label of an earlier box, of those from which the updated binding can be had, more than at"
     " any other token with a role: in the swap the asked box's or its partner's, or the partner's in the context.",
     where=C_PLACE, group="C", models=(), controlled={"where": f"{C_PLACE}; {COUNTERBALANCED}"}, **ROW)  # fmt: skip
def test_c_looks_at_an_earlier_box(claim: Claim, study: Study) -> Verdict:
    """The text says that D shapes C's attention, and not that this token has most of it."""
    return any_of(claim.kind, {token: partial(looks_at, claim, study, "C", token) for token in EARLIER})


@row("circuit.d_shapes_c",
     "Group D shapes group C's attention on an earlier box: with D as in the noise prompt it falls by a tenth or more.",
     group="C", needs=("C", "D"), models=(),
     where=f"{C_PLACE}; outputs of D at the swap's label from the noise prompt, nothing frozen; published stories, any"
     " kind of noise",
     controlled={
         "where": f"{C_PLACE}; outputs of D at the swap's label from the noise prompt, nothing frozen;"
         f" {COUNTERBALANCED}, independent noise",
     },
     **(ROW | {
         "kind": "effect",
         "statistic": "fall of the attention on one of the labels of an earlier box, mean over the group's heads, above"
         " the margin and above a tenth of it; the tenth is ours",
     }))  # fmt: skip
def test_d_shapes_the_attention_of_c(claim: Claim, study: Study) -> Verdict:
    by_noise = shaped_attention(claim, study)

    def judge(name: str, level: float) -> Verdict:
        evidence = by_noise[name]
        before, after = (by_token(evidence, column) for column in ("before", "after"))
        labels: dict[str, Part] = {
            token: partial(all_of, claim.kind, {
                "falls": partial(effect, before[token] - after[token], margin=claim.margin(), support=SHARES),
                "by a tenth": partial(effect, (1 - TENTH) * before[token] - after[token], margin=0.0, support=SHARES),
            }) for token in EARLIER
        }  # fmt: skip
        return any_of(claim.kind, labels, level=level)

    return judge_candidates(claim, judge, by_noise)


def shaped_attention(claim: Claim, study: Study) -> dict[str, Evidence]:
    """The evidence by kind of noise. A kind that leaves D's outputs as they are tests nothing and is left out, unless
    all do."""
    conventions, by_noise = study.conventions(claim), {}
    for kind in conventions.noise:
        request = partial(request_shaped_attention, conventions=replace(conventions, noise=(kind,)))
        try:
            by_noise[str(kind)] = study.ask(claim, request)
        except GateFailed as failed:
            if failed.gate.name != NO_OP_GATE or (kind == conventions.noise[-1] and not by_noise):
                raise
    return by_noise
