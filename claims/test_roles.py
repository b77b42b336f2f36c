"""Section 4.2: what the head groups do, when they get what they have in a counterfactual prompt."""

from __future__ import annotations

from functools import partial
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from claims.parts import at_every_readout, of_candidates
from claims.rows import judges
from rebinding.experiments.roles.summary import of_group
from rebinding.paper.claim import Claim
from rebinding.paper.procedure import RolesWay
from rebinding.paper.rows.roles import (
    A_VALUES,
    CARRIES,
    EXCEPTION,
    IS_POINTER,
    LEAVES,
    LOWERS,
    MOVES,
    RAISES,
    SMALL_ON_CONTENT,
    WEAKER,
    twice,
)
from rebinding.study.roles import candidates
from rebinding.study.study import Study
from rebinding.verdicts import Verdict, effect, not_applicable, nowhere, ordering, value
from rebinding.verdicts.sentences import Part, all_of

Target: TypeAlias = Literal["pointer", "content"]
MEASURED: dict[Target, tuple[Literal["pointer", "content_control"], str]] = {
    "pointer": ("pointer", "pointed_object"),
    "content": ("content_control", "new_object"),
}
"""In which pairs, and of which word: the object at the counterfactual's place; the counterfactual's new object."""
SMALL = 0.5
"""A change of less than half of another one is small next to it."""


def change(
    claim: Claim, study: Study, group: str, target: Target, way: RolesWay | None = None
) -> npt.NDArray[np.float64]:
    """What a group's patch does to a target, by prompt."""
    pairs, word = MEASURED[target]
    return of_group(study.roles(claim, pairs, way), group, word)


def printed(claim: Claim, study: Study, group: str, *targets: Target) -> Verdict:
    """A group's effects against the printed ones, under each of the conventions that these may be numbers of."""
    papers = {target: paper for target in targets if (paper := study.printed(f"roles.{group}.{target}"))}
    if len(papers) < len(targets):
        return not_applicable(claim.kind, f"the paper prints no such effects of group {group} for this model")
    ways = {f"{way.places} places, {way.direction} direction": way for way in candidates(study.procedure(claim).roles)}

    def judged(name: str, level: float) -> Verdict:
        parts: dict[str, Part] = {
            target: partial(value, change(claim, study, group, target, ways[name]), paper)
            for target, paper in papers.items()
        }
        return all_of(claim.kind, parts, level=level)

    return of_candidates(judged, ways, claim.level)


@judges(MOVES)
@at_every_readout("roles")
def test_b_moves_the_pointer_target(claim: Claim, study: Study) -> Verdict:
    return printed(claim, study, "B", "pointer")


@judges(LEAVES)
@at_every_readout("roles")
def test_b_leaves_new_objects_alone(claim: Claim, study: Study) -> Verdict:
    return printed(claim, study, "B", "content")


@judges(A_VALUES)
@at_every_readout("roles")
def test_a_has_the_printed_effects(claim: Claim, study: Study) -> Verdict:
    return printed(claim, study, "A", "pointer", "content")


@judges(*twice(IS_POINTER))
@at_every_readout("roles")
def test_b_is_the_pointer(claim: Claim, study: Study) -> Verdict:
    others = [group for group in "ACD" if study.circuit.group(group)]
    if not others:
        return not_applicable(claim.kind, "the circuit has no group A, C or D that B could be held against")
    b = change(claim, study, "B", "pointer")
    parts: dict[str, Part] = {
        f"B over {group}": partial(ordering, b, change(claim, study, group, "pointer"), margin=claim.margin())
        for group in others
    }
    return all_of(claim.kind, parts, level=claim.level)


@judges(*twice(RAISES))
@at_every_readout("roles")
def test_b_raises_the_pointer_target_rather_than_the_content(claim: Claim, study: Study) -> Verdict:
    pointer, content = (change(claim, study, "B", target) for target in MEASURED)
    parts: dict[str, Part] = {
        "pointer up": partial(effect, pointer, margin=claim.margin()),
        "content up by less": partial(ordering, pointer, content, margin=claim.margin()),
        "content down by less": partial(ordering, pointer, -content, margin=claim.margin()),
    }
    return all_of(claim.kind, parts, level=claim.level)


@judges(*twice(SMALL_ON_CONTENT))
@at_every_readout("roles")
def test_b_does_little_to_the_content(claim: Claim, study: Study) -> Verdict:
    pointer, content = (change(claim, study, "B", target) for target in MEASURED)
    parts: dict[str, Part] = {
        "content up by less than half": partial(ordering, SMALL * pointer, content, margin=claim.margin()),
        "content down by less than half": partial(ordering, SMALL * pointer, -content, margin=claim.margin()),
    }
    return all_of(claim.kind, parts, level=claim.level)


@judges(*twice(WEAKER))
@at_every_readout("roles")
def test_a_and_c_move_the_pointer_less_than_b(claim: Claim, study: Study) -> Verdict:
    moved = {group: change(claim, study, group, "pointer") for group in "ABC"}
    parts: dict[str, Part] = {group: partial(effect, moved[group], margin=claim.margin()) for group in "AC"}
    parts |= {f"B over {one}": partial(ordering, moved["B"], moved[one], margin=claim.margin()) for one in "AC"}
    return all_of(claim.kind, parts, level=claim.level)


@judges(*twice(LOWERS))
@at_every_readout("roles")
def test_a_brings_content_down(claim: Claim, study: Study) -> Verdict:
    return effect(-change(claim, study, "A", "content"), margin=claim.margin(), level=claim.level)


@judges(*twice(CARRIES))
@at_every_readout("roles")
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


@judges(*twice(EXCEPTION))
@at_every_readout("roles")
def test_b_does_not_raise_the_pointer_target(claim: Claim, study: Study) -> Verdict:
    return nowhere(change(claim, study, "B", "pointer")[None], margin=claim.margin(), level=claim.level)
