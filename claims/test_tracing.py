"""Section 3: where the answer comes from. Original into counterfactual at one layer and token, and the converse."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from claims.rows import judges
from rebinding.evidence import Evidence
from rebinding.experiments.tracing.summary import (
    added,
    base,
    first_layer,
    gains,
    last_layer,
    moved_by,
    restorable,
    restored,
    support,
)
from rebinding.paper.claim import Claim
from rebinding.paper.procedure import TracingWay
from rebinding.paper.rows.tracing import (
    BOTH_ASKED,
    DIRECT,
    EMERGE,
    LOCAL,
    NOT_THROUGH,
    OBJECT,
    OVER_PERIOD,
    PARTNER,
    PARTNER_AND_ASKED,
    PARTNER_TO_REMAINING,
    PAYLOAD,
    REFERENCE,
    SWAP_ASKED,
    judged,
)
from rebinding.study.study import ModeName, Study
from rebinding.verdicts import Verdict, effect, effect_somewhere, guarded, no_effect, nowhere, ordering, requirement
from rebinding.verdicts.sentences import Part, all_of

OBJECT_MAP = ("context_box", "context_partner_object", "swap_first", "swap_second", "swap_period", "question_box",
              "readout")  # fmt: skip
BETWEEN = ("swap_first", "swap_second", "swap_period", "question_box")
MOST = 0.5
"""What holds of the typical prompt holds in more than half of them, by what counts."""


def weighing(claim: Claim, evidence: Evidence, way: TracingWay) -> dict[str, Any]:
    """What every rule on shares of restored prompts is told."""
    return {"margin": claim.margin(), "support": support(evidence, way)}


def in_most(claim: Claim, holds: pd.Series, *maps: tuple[Evidence, TracingWay]) -> Part:
    """An order of layers, by prompt, which has to hold in most of those in which there is something to restore."""
    lost = np.logical_and.reduce([restorable(evidence, way)[holds.index] for evidence, way in maps])
    order = holds[lost] if lost.any() else holds & False
    return partial(effect, order.to_numpy(), above=MOST, margin=claim.margin())


def adds_nothing(claim: Claim, study: Study, mode: ModeName, context: str) -> Verdict:
    """At no layer does the context's label, beside the swap's, bring the answer back."""
    evidence, way = study.mentioned(claim, mode, context, "swap_asked"), study.procedure(claim).tracing
    return nowhere(added(evidence, way), **weighing(claim, evidence, way))


@judges(*judged(REFERENCE))
def test_the_asked_box_is_not_looked_up_in_the_context(claim: Claim, study: Study) -> Verdict:
    return adds_nothing(claim, study, BOTH_ASKED, "context_asked")


@judges(*judged(PARTNER))
def test_the_partner_is_not_looked_up_in_the_context(claim: Claim, study: Study) -> Verdict:
    return adds_nothing(claim, study, PARTNER_AND_ASKED, "context_partner")


def passing(claim: Claim, study: Study, mode: ModeName, edited: str, other: str) -> dict[str, Part]:
    """From the edited label over tokens in between to the readout, where the box arrives without its object."""
    evidence, way = study.traced(claim, mode, *BETWEEN, "readout"), study.procedure(claim).tracing
    weighed = weighing(claim, evidence, way)
    between = (other, "swap_period", "question_box")
    said = gains(study.traced(claim, OBJECT, *OBJECT_MAP), "readout", way) > 0
    arrived = gains(evidence, "readout", way).mask(said, 0.0)
    found = evidence, way
    first, last = (first_layer(*found, *roles) for roles in (between, ("readout",)))
    return {
        f"{mode}, in between": partial(effect_somewhere, restored(evidence, way, *between), **weighed),
        f"{mode}, at the readout": partial(effect_somewhere, arrived.to_numpy(), **weighed),
        f"{mode}, readout after the tokens in between": in_most(claim, first < last, found),
        f"{mode}, readout after the label": in_most(claim, last_layer(*found, edited) < last, found),
    }


@judges(*judged(EMERGE))
def test_boxes_matter_from_the_swap_on_and_end_at_the_readout(claim: Claim, study: Study) -> Verdict:
    asked = passing(claim, study, SWAP_ASKED, "swap_asked", "swap_partner")
    partner = passing(claim, study, PARTNER_TO_REMAINING, "swap_partner", "swap_asked")
    return all_of(claim.kind, asked | partner)


@judges(*judged(DIRECT))
def test_the_object_goes_from_its_token_to_the_readout(claim: Claim, study: Study) -> Verdict:
    evidence, way = study.traced(claim, OBJECT, *OBJECT_MAP), study.procedure(claim).tracing
    weighed, own = weighing(claim, evidence, way), "context_partner_object"
    in_turn = last_layer(evidence, way, own) < first_layer(evidence, way, "readout")
    return all_of(
        claim.kind,
        {
            "its own token": partial(effect_somewhere, restored(evidence, way, own), **weighed),
            "in between": partial(nowhere, restored(evidence, way, *BETWEEN), **weighed),
            "the readout in later layers": in_most(claim, in_turn, (evidence, way)),
        },
    )


@judges(*judged(NOT_THROUGH))
def test_labels_do_not_carry_the_object(claim: Claim, study: Study) -> Verdict:
    evidence, way = study.traced(claim, OBJECT, *OBJECT_MAP), study.procedure(claim).tracing
    labels = (*(f"context_box[{slot}]" for slot in range(claim.boxes)), "swap_first", "swap_second", "question_box")
    lost = requirement("base", base(evidence, way) < 1, "the unpatched counterfactual gives the original's answer")
    return guarded(
        claim.kind, [lost], lambda: nowhere(restored(evidence, way, *labels), **weighing(claim, evidence, way))
    )


@judges(*judged(PAYLOAD))
def test_the_box_reaches_the_readout_before_the_object(claim: Claim, study: Study) -> Verdict:
    way = study.procedure(claim).tracing
    boxes = study.traced(claim, PARTNER_TO_REMAINING, *BETWEEN, "readout")
    things = study.traced(claim, OBJECT, *OBJECT_MAP)
    earlier = first_layer(boxes, way, "readout") < first_layer(things, way, "readout")
    return in_most(claim, earlier, (boxes, way), (things, way))(level=claim.level)


@judges(*judged(OVER_PERIOD))
def test_the_readout_moves_more_than_the_full_stop(claim: Claim, study: Study) -> Verdict:
    evidence, way = study.diagnosed(claim), study.procedure(claim).tracing
    stop, readout = moved_by(evidence, "swap_period", "every_layer"), moved_by(evidence, "readout", way.readout)
    parts: dict[str, Part] = {
        f"{name}": partial(ordering, readout[name] / 2, stop[name], margin=claim.margin()) for name in stop
    }
    return all_of(claim.kind, parts)


@judges(*judged(LOCAL))
def test_the_full_stop_helps_one_question_and_the_readout_all(claim: Claim, study: Study) -> Verdict:
    evidence, way = study.diagnosed(claim), study.procedure(claim).tracing
    stop, readout = moved_by(evidence, "swap_period", "every_layer"), moved_by(evidence, "readout", way.readout)
    margin = claim.margin()
    parts: dict[str, Part] = {"full stop, asked": partial(effect, stop["asked"], margin=margin)}
    parts |= {f"full stop, {name}": partial(no_effect, stop[name], margin=margin) for name in stop if name != "asked"}
    parts |= {f"readout, {name}": partial(effect, readout[name], margin=margin) for name in readout}
    parts |= {f"more, {name}": partial(ordering, readout[name], stop[name], margin=margin) for name in readout}
    return all_of(claim.kind, parts)
