"""Section 4.2: what the head groups do, when they get the attention that they have in a counterfactual prompt."""

from __future__ import annotations

from functools import partial
from typing import Literal, TypeAlias

from claims.rows import judges
from rebinding.experiments.roles.summary import of_group
from rebinding.paper.claim import Claim
from rebinding.paper.rows.roles import A_VALUES, CARRIES, EXCEPTION, IS_POINTER, LEAVES, MOVES, SMALL_ON_CONTENT, WEAKER
from rebinding.study.study import Study
from rebinding.verdicts import Verdict, effect, not_applicable, ordering, value
from rebinding.verdicts.sentences import Part, all_of, any_of

Kind: TypeAlias = Literal["pointer", "content"]

POINTER, CONTENT = "pointed_object", "new_object"
"""The object at the counterfactual's place, and the counterfactual's new object."""


def printed(claim: Claim, study: Study, group: str, *kinds: Kind) -> Verdict:
    """A group's effects against the printed ones."""
    words: dict[Kind, str] = {"pointer": POINTER, "content": CONTENT}
    pairs: dict[Kind, Literal["pointer", "content_control"]] = {"pointer": "pointer", "content": "content_control"}
    parts: dict[str, Part] = {}
    for kind in kinds:
        paper = study.printed(f"roles.{group}.{kind}")
        if paper is None:
            return not_applicable(claim.kind, f"the paper prints no {kind} effect of group {group} for this model")
        parts[kind] = partial(value, of_group(study.roles(claim, pairs[kind]), group, words[kind]), paper)
    return all_of(claim.kind, parts)


@judges(MOVES)
def test_b_moves_the_pointer_target(claim: Claim, study: Study) -> Verdict:
    return printed(claim, study, "B", "pointer")


@judges(LEAVES)
def test_b_leaves_new_objects_alone(claim: Claim, study: Study) -> Verdict:
    return printed(claim, study, "B", "content")


@judges(A_VALUES)
def test_a_has_the_printed_effects(claim: Claim, study: Study) -> Verdict:
    return printed(claim, study, "A", "pointer", "content")


@judges(IS_POINTER)
def test_b_is_the_pointer(claim: Claim, study: Study) -> Verdict:
    evidence = study.roles(claim, "pointer")
    b = of_group(evidence, "B", POINTER)
    return all_of(
        claim.kind,
        {
            f"B over {group}": partial(ordering, b, of_group(evidence, group, POINTER), margin=claim.margin())
            for group in "ACD"
            if study.circuit.group(group)
        },
    )


@judges(SMALL_ON_CONTENT)
def test_b_moves_the_pointer_more_than_the_content(claim: Claim, study: Study) -> Verdict:
    pointer = of_group(study.roles(claim, "pointer"), "B", POINTER)
    content = of_group(study.roles(claim, "content_control"), "B", CONTENT)
    return ordering(pointer, abs(content), margin=claim.margin())


@judges(WEAKER)
def test_a_and_c_move_the_pointer_less_than_b(claim: Claim, study: Study) -> Verdict:
    moved = {group: of_group(study.roles(claim, "pointer"), group, POINTER) for group in "ABC"}
    parts: dict[str, Part] = {group: partial(effect, moved[group], margin=claim.margin()) for group in "AC"}
    parts |= {f"B over {one}": partial(ordering, moved["B"], moved[one], margin=claim.margin()) for one in "AC"}
    return all_of(claim.kind, parts)


@judges(CARRIES)
def test_a_brings_content_and_takes_the_pointer_down(claim: Claim, study: Study) -> Verdict:
    content = of_group(study.roles(claim, "content_control"), "A", CONTENT)
    pointer = of_group(study.roles(claim, "pointer"), "A", POINTER)
    return all_of(
        claim.kind,
        {
            "content up": partial(effect, content, margin=claim.margin()),
            "pointer down": partial(effect, -pointer, margin=claim.margin()),
        },
    )


@judges(EXCEPTION)
def test_another_group_points_more_than_b(claim: Claim, study: Study) -> Verdict:
    evidence = study.roles(claim, "pointer")
    b = of_group(evidence, "B", POINTER)
    return any_of(
        claim.kind,
        {
            f"{group} over B": partial(ordering, of_group(evidence, group, POINTER), b, margin=claim.margin())
            for group in "ACD"
            if study.circuit.group(group)
        },
    )
