"""Section 3: where the answer comes from. Activation patching at one layer and token, original into counterfactual and
the converse.

Layers count from the second on: at the input of the first, a patch of the only edited token is the original run. At the
readout a layer counts for a box only before the object arrives: from then on the patch carries the answer itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from claims.catalogue import GEMMA_2, row
from rebinding.evidence import Evidence
from rebinding.experiments.tracing.summary import (
    context_contribution,
    first_layer,
    gains,
    gains_by_place,
    last_layer,
    margin_change,
    restorable,
    support,
    unpatched_hit_rate,
)
from rebinding.paper.claim import Claim
from rebinding.paper.procedure import TracingConventions
from rebinding.study.study import ModeName, Study
from rebinding.verdicts import (
    Verdict,
    effect,
    effect_nowhere,
    effect_somewhere,
    guarded,
    no_effect,
    ordering,
    requirement,
)
from rebinding.verdicts.quantities import with_quantities
from rebinding.verdicts.sentences import Part, all_of, most_of

SECTION = "tracing"
ASKED_LABEL_IN_SWAP: ModeName = "swap_only"
ASKED_LABEL_IN_BOTH: ModeName = "context_and_swap"
PARTNER_IN_CONTEXT_ASKED_IN_SWAP: ModeName = "context_target_box_and_swap_query_box"
PARTNER_TO_REMAINING: ModeName = "swap_target_box_to_remaining_context_box"
OBJECT_MODE: ModeName = "target_box"
OBJECT_ROLES = ("context_box", "context_partner_object", "swap_first", "swap_second", "swap_period", "question_box",
              "readout")  # fmt: skip
INTERMEDIATE = ("swap_first", "swap_second", "swap_period", "question_box")
MAJORITY = 0.5
"""A rule that holds for the typical prompt holds in more than half of the prompts, by the margin."""
RESTORED = "share of prompts in which a patch brings the original's answer back"
ADDED = f"{RESTORED}: context and swap patched, less swap alone"
CHANGE = "change of logit(counterfactual's answer) - logit(original's answer)"
ROW: dict[str, Any] = {
    "models": (GEMMA_2,),  # the figures of this section are of one model
    "controlled": {},
    "five_boxes": True,
}
RESULTS = ROW | {"source": "section 3, results", "metrics": ("iia",)}
FIRST_MENTION = RESULTS | {"kind": "no-effect", "statistic": f"{RESTORED}; the largest over layers"}
ADDED_BY_CONTEXT = {"statistic": f"{ADDED}; the largest over layers"}
READOUT_VS_STOP_ROW = ROW | {
    "kind": "ordering",
    "metrics": ("margin",),
    "where": f"mode {PARTNER_TO_REMAINING}, counterfactual into original; the swap's full stop and the readout",
}


def margin_and_support(claim: Claim, evidence: Evidence, conventions: TracingConventions) -> dict[str, Any]:
    """The options of every rule on shares of restored prompts."""
    return {"margin": claim.margin(), "support": support(evidence, conventions)}


def in_most(claim: Claim, holds: pd.Series, *maps: tuple[Evidence, TracingConventions]) -> Part:
    """An order of layers, by prompt, holds in most prompts in which a patch has something to restore."""
    restorable_prompts = np.logical_and.reduce(
        [restorable(evidence, conventions)[holds.index] for evidence, conventions in maps]
    )
    order = holds[restorable_prompts] if restorable_prompts.any() else holds & False
    return partial(effect, order.to_numpy(), above=MAJORITY, margin=claim.margin())


def adds_nothing(claim: Claim, study: Study, mode: ModeName, context: str) -> Verdict:
    """Patching the context label restores no answer, as in the paper's map; controlled: besides the swap label it
    restores no more answers than the swap label alone. At any layer."""
    conventions = study.procedure(claim).tracing
    if claim.procedure == "published":
        evidence = study.trace_residuals(claim, mode, context)
        values = gains_by_place(evidence, conventions, context)
    else:
        evidence = study.patch_mention(claim, mode, context, "swap_asked")
        values = context_contribution(evidence, conventions)
    return effect_nowhere(values, **margin_and_support(claim, evidence, conventions))


@row("tracing.reference_box_not_from_context",
     "A patch of the asked box's first mention restores no answer.",
     where=f"mode {ASKED_LABEL_IN_BOTH}; every layer but the first, at the asked box's first mention; the swap still"
     " names another box",
     **(FIRST_MENTION | {"controlled": ADDED_BY_CONTEXT | {
         "statement": "The first mention of the asked box adds nothing to the answer.",
         "where": f"mode {ASKED_LABEL_IN_BOTH}; every layer but the first, at the asked box's first mention and in the"
         " swap",
     }}))  # fmt: skip
def test_the_asked_box_is_not_looked_up_in_the_context(claim: Claim, study: Study) -> Verdict:
    return adds_nothing(claim, study, ASKED_LABEL_IN_BOTH, "context_asked")


@row("tracing.swap_box_not_from_context",
     "A patch of the partner's first mention restores no answer.",
     where=f"mode {PARTNER_IN_CONTEXT_ASKED_IN_SWAP}; every layer but the first, at the partner's first mention; the"
     " swap still names another box instead of the asked one",
     **(FIRST_MENTION | {"controlled": ADDED_BY_CONTEXT | {
         "statement": "The first mention of the partner adds nothing to the answer.",
         "where": f"mode {PARTNER_IN_CONTEXT_ASKED_IN_SWAP}; every layer but the first, the partner's first mention"
         " and the asked in the swap",
     }}))  # fmt: skip
def test_the_partner_is_not_looked_up_in_the_context(claim: Claim, study: Study) -> Verdict:
    return adds_nothing(claim, study, PARTNER_IN_CONTEXT_ASKED_IN_SWAP, "context_partner")


def at_two_tokens(claim: Claim, tokens: Mapping[str, Part], *, level: float) -> Verdict:
    """The effect is at two or more of these tokens: the text has "multiple intermediate token positions"."""
    return most_of(claim.kind, tokens, 2 / len(tokens), level=level)


def path_to_readout(claim: Claim, study: Study, mode: ModeName, edited: str, partner: str) -> dict[str, Part]:
    """The box goes from the edited label over the tokens in between to the readout, where it arrives before its object.

    `partner` is the other label of the swap, one of the tokens in between.
    """
    evidence, conventions = study.trace_residuals(claim, mode, *INTERMEDIATE, "readout"), study.procedure(claim).tracing
    options = margin_and_support(claim, evidence, conventions)
    between = (partner, "swap_period", "question_box")
    has_object = gains(study.trace_residuals(claim, OBJECT_MODE, *OBJECT_ROLES), "readout", conventions) > 0
    box_gains = gains(evidence, "readout", conventions).mask(has_object, 0.0)
    trace = evidence, conventions
    tokens: dict[str, Part] = {
        token: partial(effect_somewhere, gains_by_place(evidence, conventions, token), **options) for token in between
    }
    first, last = (first_layer(*trace, *roles) for roles in (between, ("readout",)))
    return {
        f"{mode}, at two tokens in between": partial(at_two_tokens, claim, tokens),
        f"{mode}, at the readout": partial(effect_somewhere, box_gains.to_numpy(), **options),
        f"{mode}, readout after the tokens in between": in_most(claim, first < last, trace),
        f"{mode}, readout after the label": in_most(claim, last_layer(*trace, edited) < last, trace),
    }


@row("tracing.boxes_emerge_after_swap",
     "After the swap names a box, its identity moves through two or more of the tokens in between and ends at the"
     " readout.",
     kind="effect",
     statistic=f"{RESTORED}: the largest over layers, by token in between; first and last such layers, by prompt",
     where=f"modes {ASKED_LABEL_IN_SWAP} and {PARTNER_TO_REMAINING}; the edited label, tokens with a role behind it,"
     " and the readout while the object is not there", **RESULTS)  # fmt: skip
def test_boxes_matter_from_the_swap_on_and_end_at_the_readout(claim: Claim, study: Study) -> Verdict:
    asked_box = path_to_readout(claim, study, ASKED_LABEL_IN_SWAP, "swap_asked", "swap_partner")
    partner = path_to_readout(claim, study, PARTNER_TO_REMAINING, "swap_partner", "swap_asked")
    return all_of(claim.kind, asked_box | partner)


@row("tracing.object_direct",
     "The object's identity sits on its own token, then in later layers at the readout, and nowhere in between.",
     kind="effect",
     statistic=f"{RESTORED}: the largest over layers and tokens; first layers of its own token and of the readout, by"
     " prompt",
     where=f"mode {OBJECT_MODE}; every layer but the first, at the object, the swap's labels and full stop, question,"
     " readout", **RESULTS)  # fmt: skip
def test_the_object_goes_from_its_token_to_the_readout(claim: Claim, study: Study) -> Verdict:
    evidence, conventions = study.trace_residuals(claim, OBJECT_MODE, *OBJECT_ROLES), study.procedure(claim).tracing
    options, own_token = margin_and_support(claim, evidence, conventions), "context_partner_object"
    own, readout = (first_layer(evidence, conventions, token) for token in (own_token, "readout"))
    return all_of(
        claim.kind,
        {
            "its own token": partial(effect_somewhere, gains_by_place(evidence, conventions, own_token), **options),
            "in between": partial(effect_nowhere, gains_by_place(evidence, conventions, *INTERMEDIATE), **options),
            "the readout in later layers": in_most(claim, own < readout, (evidence, conventions)),
        },
    )


@row("tracing.object_not_through_labels", "No token of a box's label carries the identity of the object.",
     kind="no-effect", statistic=f"{RESTORED}: the largest over layers and labels",
     where=f"mode {OBJECT_MODE}; every layer but the first, at every label", **RESULTS)  # fmt: skip
def test_labels_do_not_carry_the_object(claim: Claim, study: Study) -> Verdict:
    evidence, conventions = study.trace_residuals(claim, OBJECT_MODE, *OBJECT_ROLES), study.procedure(claim).tracing
    labels = (*(f"context_box[{slot}]" for slot in range(claim.boxes)), "swap_first", "swap_second", "question_box")
    gate = requirement(
        "base",
        unpatched_hit_rate(evidence, conventions) < 1,
        "the counterfactual gives the original's answer in all prompts without a patch, so a patch can restore nothing",
    )
    return guarded(
        claim.kind,
        [gate],
        lambda: effect_nowhere(
            gains_by_place(evidence, conventions, *labels), **margin_and_support(claim, evidence, conventions)
        ),
    )


@row("tracing.pointer_before_payload",
     "Which box is meant reaches the readout at an earlier layer than the object does.",
     kind="effect",
     statistic="share of prompts in which the readout restores the box from an earlier layer on than the object",
     where=f"modes {PARTNER_TO_REMAINING} and {OBJECT_MODE}; every layer but the first, at the readout",
     **(RESULTS | {"source": "our wording; section 3 says it without numbers", "models": ()}))  # fmt: skip
def test_the_box_reaches_the_readout_before_the_object(claim: Claim, study: Study) -> Verdict:
    conventions = study.procedure(claim).tracing
    boxes = study.trace_residuals(claim, PARTNER_TO_REMAINING, *INTERMEDIATE, "readout")
    objects = study.trace_residuals(claim, OBJECT_MODE, *OBJECT_ROLES)
    is_earlier = first_layer(boxes, conventions, "readout") < first_layer(objects, conventions, "readout")
    return in_most(claim, is_earlier, (boxes, conventions), (objects, conventions))(level=claim.level)


@row("tracing.readout_over_swap_period",
     "For every question, patching the readout moves the answer more than patching the full stop.",
     source="section 3, results; appendix, causal mediation", headline=5,
     statistic=f"{CHANGE}: the readout's less the full stop's, for each question", **READOUT_VS_STOP_ROW)  # fmt: skip
def test_the_readout_moves_more_than_the_full_stop(claim: Claim, study: Study) -> Verdict:
    return readout_over_stop(claim, study, share=1.0)


@row("tracing.readout_much_over_swap_period",
     "For every question, patching the full stop moves the answer by less than half of what patching the readout"
     " does.",
     source="section 3, results (\"much stronger\"; that less than half is much less is ours)",
     statistic=f"{CHANGE}: half of the readout's less the full stop's, for each question",
     **(READOUT_VS_STOP_ROW | {"models": ()}))  # fmt: skip
def test_the_readout_moves_more_than_twice_as_much(claim: Claim, study: Study) -> Verdict:
    return readout_over_stop(claim, study, share=0.5)


def readout_over_stop(claim: Claim, study: Study, share: float) -> Verdict:
    """For every question, this share of the readout's effect exceeds the full stop's effect."""
    evidence, conventions = study.diagnose_readout(claim), study.procedure(claim).tracing
    stop, readout = (
        margin_change(evidence, "swap_period", "every_layer"),
        margin_change(evidence, "readout", conventions.readout),
    )
    parts: dict[str, Part] = {
        f"{name}": partial(ordering, share * readout[name], stop[name], margin=claim.margin()) for name in stop
    }
    means = {"readout": readout.mean(axis=1), "swap's full stop": stop.mean(axis=1)}  # over questions
    return with_quantities(all_of(claim.kind, parts), "margin", means)


@row("tracing.prefix_effect_local",
     "Patching the full stop helps the question about the asked box and no other; the readout helps each, and more.",
     source="appendix, causal mediation", statistic=f"{CHANGE}, for each question", **READOUT_VS_STOP_ROW)  # fmt: skip
def test_the_full_stop_helps_one_question_and_the_readout_all(claim: Claim, study: Study) -> Verdict:
    study.diagnose_readout(claim, all_windows=True)  # for the figure
    evidence, conventions = study.diagnose_readout(claim), study.procedure(claim).tracing
    stop, readout = (
        margin_change(evidence, "swap_period", "every_layer"),
        margin_change(evidence, "readout", conventions.readout),
    )
    margin = claim.margin()
    parts: dict[str, Part] = {"full stop, asked": partial(effect, stop["asked"], margin=margin)}
    parts |= {f"full stop, {name}": partial(no_effect, stop[name], margin=margin) for name in stop if name != "asked"}
    parts |= {f"readout, {name}": partial(effect, readout[name], margin=margin) for name in readout}
    parts |= {f"more, {name}": partial(ordering, readout[name], stop[name], margin=margin) for name in readout}
    return all_of(claim.kind, parts)
