"""Section 3: where does the answer come from?

Layers are counted from the second on: at the input of the first, a patch of the only edited token is the original run.
Of the readout a layer counts for a box only while the object is not there yet: from then on a patch is the answer.
"""

from __future__ import annotations

from typing import Any

from rebinding.paper.claim import Claim
from rebinding.world.designs import ModeName

PRINTED_WITH_FIVE = 5
"""N in the captions of the figures with five boxes; too few to decide a share of prompts, and enough for logits."""
G9 = ("gemma2-9b",)
"""The figures of this section are of one model."""
SWAP_ASKED: ModeName = "swap_only"
BOTH_ASKED: ModeName = "context_and_swap"
PARTNER_AND_ASKED: ModeName = "context_target_box_and_swap_query_box"
PARTNER_TO_REMAINING: ModeName = "swap_target_box_to_remaining_context_box"
OBJECT: ModeName = "target_box"
RESTORED = "share of prompts in which a patch brings the original's answer back"
ADDED = f"{RESTORED}: context and swap patched, less swap alone"
CHANGE = "change of logit(counterfactual's answer) - logit(original's answer)"
DIAGNOSED = f"mode {PARTNER_TO_REMAINING}, counterfactual into original; the swap's full stop and the readout"
RESULTS: dict[str, Any] = {"source": "section 3, results", "metrics": ("iia",), "asserted": G9}
RESOLVED: dict[str, Any] = {"kind": "ordering", "metrics": ("margin",), "asserted": G9, "where": DIAGNOSED}


def judged(claim: Claim) -> tuple[Claim, ...]:
    """A sentence under both procedures, with three boxes and with five."""
    wide = claim.with_five_boxes(n=PRINTED_WITH_FIVE)
    return claim, claim.controlled(), wide, wide.controlled(n=claim.n)


REFERENCE = Claim(
    "tracing.reference_box_not_from_context",
    "What the answer needs of the asked box does not come from where the box is first mentioned.",
    kind="no-effect",
    statistic=f"{ADDED}; the largest over layers",
    where=f"mode {BOTH_ASKED}; every layer but the first, at the asked box's first mention and in the swap",
    **RESULTS,
)
PARTNER = Claim(
    "tracing.swap_box_not_from_context",
    "What the answer needs of the partner does not come from where the partner is first mentioned.",
    kind="no-effect",
    statistic=f"{ADDED}; the largest over layers",
    where=f"mode {PARTNER_AND_ASKED}; every layer but the first, the partner's first mention and the asked in the swap",
    **RESULTS,
)
EMERGE = Claim(
    "tracing.boxes_emerge_after_swap",
    "Which box is meant passes, after the swap has named it, through tokens in between, and ends at the readout.",
    kind="effect",
    statistic=f"{RESTORED}: the largest over layers and tokens in between; first and last such layers, by prompt",
    where=f"modes {SWAP_ASKED} and {PARTNER_TO_REMAINING}; the edited label, tokens with a role behind it, and the"
    " readout while the object is not there",
    **RESULTS,
)
DIRECT = Claim(
    "tracing.object_direct",
    "The object's identity sits on its own token, then in later layers at the readout, and nowhere in between.",
    kind="effect",
    statistic=f"{RESTORED}: the largest over layers and tokens; last layer of its own token, first of the readout",
    where=f"mode {OBJECT}; every layer but the first, at the object, the swap's labels and end, question, readout",
    **RESULTS,
)
NOT_THROUGH = Claim(
    "tracing.object_not_through_labels",
    "No token of a box's label carries the identity of the object.",
    kind="no-effect",
    statistic=f"{RESTORED}: the largest over layers and labels",
    where=f"mode {OBJECT}; every layer but the first, at every label",
    **RESULTS,
)
OVER_PERIOD = Claim(
    "tracing.readout_over_swap_period",
    "For every question, patching the readout moves the answer more than twice as much as patching the swap's end.",
    "section 3, results; appendix, causal mediation",
    statistic=f"{CHANGE}: half of the readout's less the full stop's, for each question",
    **RESOLVED,
)
LOCAL = Claim(
    "tracing.prefix_effect_local",
    "Patching the swap's end helps the question about the asked box and no other; the readout helps each, and more.",
    "appendix, causal mediation",
    statistic=f"{CHANGE}, for each question",
    **RESOLVED,
)
PAYLOAD = Claim(
    "tracing.pointer_before_payload",
    "Which box is meant reaches the readout at an earlier layer than the object does.",
    "ours; section 3 tells it so in words",
    "effect",
    ("iia",),
    "share of prompts in which the readout restores the box from an earlier layer on than the object",
    f"modes {PARTNER_TO_REMAINING} and {OBJECT}; every layer but the first, at the readout",
    asserted=(),
)
