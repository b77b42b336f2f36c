"""Section 4.2: what the head groups do, when activation patching gives them their output or attention pattern from a
counterfactual prompt."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from claims.catalogue import GEMMA_2, GEMMA_3, LLAMA_3B, LLAMA_8B, row
from rebinding.experiments.circuit.summary import gate_other_heads
from rebinding.experiments.roles.request import request_random_interchange, request_single_heads
from rebinding.experiments.roles.summary import layer_of_half, of_group, of_random_groups
from rebinding.paper.circuit import Circuit
from rebinding.paper.claim import Claim
from rebinding.study.study import Study
from rebinding.verdicts import Verdict, effect, guarded, not_applicable, ordering, value
from rebinding.verdicts.quantities import with_quantities
from rebinding.verdicts.sentences import Part, all_of, any_of

SECTION = "roles"
Target: TypeAlias = Literal["pointer", "content"]
Values: TypeAlias = npt.NDArray[np.float64]
MEASURED: dict[Target, tuple[Literal["pointer", "content_control"], str]] = {
    "pointer": ("pointer", "pointed_object"),
    "content": ("content_control", "new_object"),
}
"""The pairs and the word of each target: the object at the counterfactual's place; the counterfactual's new object."""
SMALL = 0.5
"""A change of less than half of another counts as small; the half is ours."""
BALANCED = 288
"""Ids of eight whole blocks of counterbalanced stories, each id in both directions."""
CLOSE = 1000
"""Prompts for the row whose printed number, -0.29, exceeds the margin by only 0.04. They decide in four runs of five if
prompts spread by half a logit; 300 do if they spread by a quarter."""
PLACE = (
    "whole groups: outputs of A and patterns of B at the readout, patterns of C at the question's box and of D at the"
    " partner in the swap; the answer's slot goes from 0 to 1"
)
ROW: dict[str, Any] = {
    "source": "section 4.2, results",
    "metrics": ("dlogit",),
    "statistic": "mean change of the logit of the object at the counterfactual's place (pointer pairs), or of the new"
    " object (content control)",
    "reads": tuple(MEASURED),
}
BY_CODE_OR_TEXT = f"{PLACE}; or, as the text has it, patterns at the readout for all, from 1 to 0"
PRINTED = ROW | {
    "where": BY_CODE_OR_TEXT,
    "kind": "value",
    "models": (GEMMA_2,),
}
TWICE = ROW | {
    "where": BY_CODE_OR_TEXT,
    "controlled": {
        "where": "patterns of whole groups, each at its own token, where the order of two statements is all that"
        " changes; both directions of each id averaged; counterbalanced slots, held-out words",
        "n": BALANCED,
    },
}
CROSS_MODEL = TWICE | {"source": "section 6, head groups across models"}


def change(claim: Claim, study: Study, group: str, target: Target) -> Values:
    """The change of a target's logit by a group's patch: (prompt,)."""
    pairs, word = MEASURED[target]
    return of_group(study.roles(claim, pairs), group, word)


def compare_with_printed(claim: Claim, study: Study, group: str, *targets: Target) -> Verdict:
    """A group's effects compared with the printed ones."""
    papers = {target: paper for target in targets if (paper := study.printed(f"roles.{group}.{target}"))}
    if len(papers) < len(targets):
        return not_applicable(claim.kind, f"the paper prints no such effects of group {group} for this model")
    parts: dict[str, Part] = {
        target: partial(value, change(claim, study, group, target), paper) for target, paper in papers.items()
    }
    return all_of(claim.kind, parts, level=claim.level)


@row("roles.b_moves_pointer",
     "With the counterfactual's attention in group B, the object at the counterfactual's place gains this much.",
     group="B", printed="roles.B.pointer", **PRINTED)  # fmt: skip
def test_b_moves_the_pointer_target(claim: Claim, study: Study) -> Verdict:
    return compare_with_printed(claim, study, "B", "pointer")


@row("roles.b_leaves_content",
     "With the counterfactual's attention in group B, a new object in the same place gains next to nothing.",
     group="B", printed="roles.B.content", **PRINTED)  # fmt: skip
def test_b_leaves_new_objects_alone(claim: Claim, study: Study) -> Verdict:
    return compare_with_printed(claim, study, "B", "content")


@row("roles.a_on_g9",
     "What group A takes over moves the pointer target, and a new object, by the printed amounts.",
     group="A", **PRINTED)  # fmt: skip
def test_a_has_the_printed_effects(claim: Claim, study: Study) -> Verdict:
    return compare_with_printed(claim, study, "A", "pointer", "content")


@row("roles.b_is_the_pointer", "Group B moves the pointer target more than groups A, C and D do.",
     kind="ordering", group="B", headline=2, models=(GEMMA_2,), **TWICE)  # fmt: skip
def test_b_is_the_pointer(claim: Claim, study: Study) -> Verdict:
    groups = [group for group in "ACD" if study.circuit.group(group)]
    if not groups:
        return not_applicable(claim.kind, "the circuit has no group A, C or D to compare B with")
    changes = {group: change(claim, study, group, "pointer") for group in ("B", *groups)}
    parts: dict[str, Part] = {
        f"B over {group}": partial(ordering, changes["B"], changes[group], margin=claim.margin()) for group in groups
    }
    verdict = all_of(claim.kind, parts, level=claim.level)
    return with_quantities(verdict, "dlogit", changes)


def change_of_both(claim: Claim, study: Study) -> tuple[Values, Values]:
    """The changes of both targets by group B's patch, the pointer target's first: (prompt,) each."""
    return change(claim, study, "B", "pointer"), change(claim, study, "B", "content")


@row("roles.b_raises_pointer",
     "Group B raises the pointer target; a new object changes by less than half as much, up or down.",
     kind="ordering", group="B", headline=2, models=(GEMMA_2, GEMMA_3, LLAMA_8B), **CROSS_MODEL)  # fmt: skip
def test_b_raises_the_pointer_target_rather_than_the_content(claim: Claim, study: Study) -> Verdict:
    pointer, content = change_of_both(claim, study)
    parts: dict[str, Part] = {
        "pointer up": partial(effect, pointer, margin=claim.margin()),
        "content up by less than half": partial(ordering, SMALL * pointer, content, margin=0.0),
        "content down by less than half": partial(ordering, SMALL * pointer, -content, margin=0.0),
    }
    verdict = all_of(claim.kind, parts, level=claim.level)
    return with_quantities(verdict, "dlogit", {"pointer target": pointer, "new object": content})


@row("roles.b_over_random_groups",
     "Group B raises the pointer target by more than random groups with as many heads in each of its layers do.",
     kind="ordering", group="B", models=(), procedure="controlled", unit="nested", n=BALANCED,
     **(ROW | {
         "source": "beyond the paper",
         "statistic": "change of the logit of the object at the counterfactual's place: B's less that of random groups,"
         " draws crossed with prompts",
         "where": "patterns of whole groups at the readout, where the order of two statements is all that changes; both"
         " directions of each id averaged; counterbalanced slots, held-out words",
     }))  # fmt: skip
def test_b_points_more_than_random_groups(claim: Claim, study: Study) -> Verdict:
    heads = tuple(head for head in study.circuit.heads if head.group == "B")
    enough_heads = gate_other_heads(Circuit(heads), study.heads)
    request = partial(request_random_interchange, group="B", conventions=study.procedure(claim).roles, cut=study.cut)

    def judge() -> Verdict:
        random = of_random_groups(study.ask(claim, request), "pointed_object")  # (draw, prompt)
        group_b = change(claim, study, "B", "pointer")
        return ordering(group_b, random, unit=claim.unit, margin=claim.margin(), level=claim.level)

    return guarded(claim.kind, [enough_heads], judge)


@row("beyond.pointer_then_payload",
     "At the readout group B acts before group A: what B's heads make of the answer's place is half done in an earlier"
     " layer than what A's heads make of it.",
     kind="effect", group="B", needs=("B", "A"), models=(), procedure="controlled", n=BALANCED,
     **(ROW | {
         "source": "section 4.2, introduction (\"first determines the relevant source position, and then retrieves\"),"
         " without a measurement",
         "metrics": ("dlogit", "iia"),
         "statistic": "change of the logit of the object at the counterfactual's place by either group; share of"
         " prompts in which the layer up to which single heads of B make half of what all of them raise it by lies"
         " below that of A",
         "where": "patterns of single heads at the readout, where the order of two statements is all that changes; both"
         " directions of each id; counterbalanced slots, held-out words",
     }))  # fmt: skip
def test_the_place_is_found_before_the_object_is_fetched(claim: Claim, study: Study) -> Verdict:
    options: Any = {"groups": "BA", "conventions": study.procedure(claim).roles, "cut": study.cut}
    evidence, (_, word) = study.ask(claim, partial(request_single_heads, **options)), MEASURED["pointer"]
    of_b, of_a = (layer_of_half(evidence, group, word) for group in "BA")
    parts: dict[str, Part] = {
        f"{group} raises it": partial(effect, of_group(evidence, group, word), margin=claim.margin()) for group in "BA"
    }
    parts["B before A"] = partial(effect, of_b < of_a, above=0.5, margin=claim.margin("iia"))  # NaN is before nothing
    return all_of(claim.kind, parts, level=claim.level)


@row("roles.a_and_c_weaker", "Groups A and C move the pointer target too, less than B.",
     kind="ordering", needs=("B", "A", "C"), models=(GEMMA_2,), **TWICE)  # fmt: skip
def test_a_and_c_move_the_pointer_less_than_b(claim: Claim, study: Study) -> Verdict:
    changes = {group: change(claim, study, group, "pointer") for group in "ABC"}
    parts: dict[str, Part] = {group: partial(effect, changes[group], margin=claim.margin()) for group in "AC"}
    parts |= {f"B over {name}": partial(ordering, changes["B"], changes[name], margin=claim.margin()) for name in "AC"}
    return all_of(claim.kind, parts, level=claim.level)


@row("roles.a_lowers_content", "What group A takes over brings a new object down.",
     kind="effect", group="A", models=(GEMMA_2,), n=CLOSE, **TWICE)  # fmt: skip
def test_a_brings_content_down(claim: Claim, study: Study) -> Verdict:
    return effect(-change(claim, study, "A", "content"), margin=claim.margin(), level=claim.level)


@row("roles.a_carries_content",
     "What group A takes over brings a new object up, more than B's does, and the pointer target down.",
     kind="ordering", group="A", needs=("A", "B"), models=(GEMMA_3, LLAMA_3B, LLAMA_8B), **CROSS_MODEL)  # fmt: skip
def test_a_brings_content_and_takes_the_pointer_down(claim: Claim, study: Study) -> Verdict:
    content = change(claim, study, "A", "content")
    parts: dict[str, Part] = {
        "content up": partial(effect, content, margin=claim.margin()),
        "content up by more than B's": partial(
            ordering, content, change(claim, study, "B", "content"), margin=claim.margin()
        ),
        "pointer down": partial(effect, -change(claim, study, "A", "pointer"), margin=claim.margin()),
    }
    return all_of(claim.kind, parts, level=claim.level)


@row("roles.llama3b_exception",
     "Group B does not raise the pointer target, or changes a new object by more than half as much.",
     kind="ordering", group="B", models=(LLAMA_3B,), **CROSS_MODEL)  # fmt: skip
def test_b_does_not_point(claim: Claim, study: Study) -> Verdict:
    """The negation of `roles.b_raises_pointer`, part by part."""
    pointer, content = change_of_both(claim, study)
    parts: dict[str, Part] = {
        "pointer not up": partial(effect, -pointer, above=-claim.margin(), margin=0.0),
        "content up by more than half": partial(ordering, content, SMALL * pointer, margin=0.0),
        "content down by more than half": partial(ordering, -content, SMALL * pointer, margin=0.0),
    }
    return any_of(claim.kind, parts, level=claim.level)
