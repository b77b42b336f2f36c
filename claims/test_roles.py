"""Section 4.2: what the head groups do, when they get the attention that they have in a counterfactual prompt."""

from __future__ import annotations

from functools import partial
from typing import Any

from claims.rows import judges
from claims.samples import of_group
from rebinding.paper.claim import Claim
from rebinding.study.study import Study
from rebinding.verdicts import Verdict, effect, not_applicable, ordering, value
from rebinding.verdicts.sentences import Part, all_of, any_of

POINTER, CONTENT = "rabbit", "egg"
"""The object at the counterfactual's place, and the counterfactual's new object."""

ROW: dict[str, Any] = {
    "source": "section 4.2, results",
    "metrics": ("dlogit",),
    "statistic": "mean change of the logit of the object at the counterfactual's place (pointer pairs), or of the new"
    " object (content control)",
    "where": "attention patterns of whole groups at the readout",
}
WITH_B: dict[str, Any] = ROW | {"groups": ("B",)}

MOVES = Claim(
    "roles.b_moves_pointer",
    "With the counterfactual's attention in group B, the object at the counterfactual's place gains this much.",
    kind="value",
    asserted=("gemma2-9b",),
    **WITH_B,
)
LEAVES = Claim(
    "roles.b_leaves_content",
    "With the counterfactual's attention in group B, a new object in the same place gains next to nothing.",
    kind="value",
    asserted=("gemma2-9b",),
    **WITH_B,
)
A_VALUES = Claim(
    "roles.a_on_g9",
    "Group A moves the pointer target less, and the new object not at all.",
    kind="value",
    asserted=("gemma2-9b",),
    groups=("A",),
    **ROW,
)
IS_POINTER = Claim(
    "roles.b_is_the_pointer",
    "Group B moves the pointer target more than any other group does.",
    kind="ordering",
    asserted=("gemma2-9b", "gemma3-12b", "llama3.1-8b"),
    **WITH_B,
)
SMALL_ON_CONTENT = Claim(
    "roles.b_small_on_content",
    "Group B moves the pointer target more than it moves a new object.",
    kind="ordering",
    asserted=("gemma2-9b", "gemma3-12b", "llama3.1-8b"),
    **WITH_B,
)
WEAKER = Claim(
    "roles.a_and_c_weaker",
    "Groups A and C move the pointer target too, less than B.",
    kind="ordering",
    asserted=("gemma2-9b",),
    **(ROW | {"groups": ("B", "A", "C")}),
)
CARRIES = Claim(
    "roles.a_carries_content",
    "Group A brings the new object in, and takes the pointer target down.",
    kind="effect",
    asserted=("gemma3-12b", "llama3.2-3b", "llama3.1-8b"),
    groups=("A",),
    **ROW,
)
EXCEPTION = Claim(
    "roles.llama3b_exception",
    "Some other group moves the pointer target more than B does.",
    kind="ordering",
    asserted=("llama3.2-3b",),
    **WITH_B,
)


def printed(claim: Claim, study: Study, group: str, *kinds: str) -> Verdict:
    """A group's effects against the printed ones."""
    words = {"pointer": POINTER, "content": CONTENT}
    pairs = {"pointer": "pointer", "content": "content_control"}
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
