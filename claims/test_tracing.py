"""Section 3: where the answer comes from. Original into counterfactual at one layer and token, and the converse."""

from __future__ import annotations

from functools import partial
from typing import Any

from claims.rows import judges
from rebinding.evidence import Evidence
from rebinding.experiments.tracing.summary import all_layers, base, differs, restored, room
from rebinding.paper.claim import Claim
from rebinding.paper.rows.tracing import (
    DIRECT,
    EMERGE,
    LOCAL,
    NOT_THROUGH,
    OVER_PERIOD,
    PARTNER,
    PARTNER_IN_CONTEXT,
    PARTNER_TO_REMAINING,
    REFERENCE,
)
from rebinding.study.study import ModeName, Study
from rebinding.verdicts import (
    Gate,
    Verdict,
    effect,
    effect_somewhere,
    guarded,
    nowhere,
    ordering,
    requirement,
)
from rebinding.verdicts.sentences import all_of

OBJECT_MAP = (
    "context_box",
    "context_partner_object",
    "swap_first",
    "swap_second",
    "swap_period",
    "question_box",
    "readout",
)
LABELS = ("context_box[0]", "context_box[1]", "context_box[2]", "swap_first", "swap_second", "question_box")


def token_differs(evidence: Evidence, role: str) -> Gate:
    """Without a difference at the patched token a patch would write what is there already."""
    return requirement("token_differs", differs(evidence, role), f"the prompts agree at {role}, a patch is a no-op")


def something_to_restore(evidence: Evidence) -> Gate:
    """The counterfactual run must not give the original's answer by itself."""
    detail = "the unpatched counterfactual gives the original's answer in every prompt; nothing can be restored"
    return requirement("base", base(evidence) < 1, detail)


def support(evidence: Evidence) -> tuple[float, float]:
    """The range of one prompt's normalised gain."""
    return -1.0 / room(evidence), 1.0 / room(evidence)


def stays_lost(claim: Claim, evidence: Evidence, role: str) -> Verdict:
    """No layer at this role restores the answer."""
    gates = [token_differs(evidence, role), something_to_restore(evidence)]
    return guarded(
        claim.kind, gates, lambda: nowhere(restored(evidence, role), margin=claim.margin(), support=support(evidence))
    )


@judges(REFERENCE, REFERENCE.with_five_boxes())
def test_the_asked_box_is_not_looked_up_in_the_context(claim: Claim, study: Study) -> Verdict:
    return stays_lost(claim, study.traced(claim, "context_and_swap", "context_asked"), "context_asked")


@judges(PARTNER, PARTNER.with_five_boxes())
def test_the_partner_is_not_looked_up_in_the_context(claim: Claim, study: Study) -> Verdict:
    return stays_lost(claim, study.traced(claim, PARTNER_IN_CONTEXT, "context_partner"), "context_partner")


@judges(EMERGE, EMERGE.with_five_boxes())
def test_boxes_matter_from_the_swap_on_and_end_at_the_readout(claim: Claim, study: Study) -> Verdict:
    modes: dict[str, ModeName] = {"swap_asked": "swap_only", "swap_partner": PARTNER_TO_REMAINING}
    maps = {edited: study.traced(claim, mode, edited, "readout") for edited, mode in modes.items()}
    return all_of(
        claim.kind,
        {
            f"{role}, edited label {edited}": partial(
                effect_somewhere, restored(evidence, role), margin=claim.margin(), support=support(evidence)
            )
            for edited, evidence in maps.items()
            for role in (edited, "readout")
        },
    )


@judges(DIRECT, DIRECT.with_five_boxes())
def test_the_object_goes_from_its_token_to_the_readout(claim: Claim, study: Study) -> Verdict:
    evidence = study.traced(claim, "target_box", *OBJECT_MAP)
    weighed: dict[str, Any] = {"margin": claim.margin(), "support": support(evidence)}
    between = restored(evidence, "swap_first", "swap_second", "swap_period", "question_box")
    return all_of(
        claim.kind,
        {
            "its own token": partial(effect_somewhere, restored(evidence, "context_partner_object"), **weighed),
            "the readout": partial(effect_somewhere, restored(evidence, "readout"), **weighed),
            "in between": partial(nowhere, between, **weighed),
        },
    )


@judges(NOT_THROUGH, NOT_THROUGH.with_five_boxes())
def test_labels_do_not_carry_the_object(claim: Claim, study: Study) -> Verdict:
    evidence = study.traced(claim, "target_box", *OBJECT_MAP)
    labels = (*LABELS, *(f"context_box[{slot}]" for slot in range(3, claim.boxes)))
    return guarded(
        claim.kind,
        [something_to_restore(evidence)],
        lambda: nowhere(restored(evidence, *labels), margin=claim.margin(), support=support(evidence)),
    )


@judges(OVER_PERIOD, OVER_PERIOD.with_five_boxes())
def test_the_readout_moves_more_than_the_full_stop(claim: Claim, study: Study) -> Verdict:
    evidence = study.diagnosed(claim)
    readout, stop = (all_layers(evidence, place).mean(axis=1) for place in ("readout", "swap_period"))
    return ordering(readout, stop, margin=claim.margin())


@judges(LOCAL, LOCAL.with_five_boxes())
def test_the_full_stop_helps_one_question_and_the_readout_all(claim: Claim, study: Study) -> Verdict:
    evidence = study.diagnosed(claim)
    stop, readout = all_layers(evidence, "swap_period"), all_layers(evidence, "readout")
    others = stop.drop(columns="asked").mean(axis=1)
    parts = {"full stop, asked over others": partial(ordering, stop["asked"], others, margin=claim.margin())}
    parts |= {f"readout, {name}": partial(effect, readout[name], margin=claim.margin()) for name in readout}
    return all_of(claim.kind, parts)
