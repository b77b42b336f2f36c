"""Section 3: where does the answer come from?"""

from __future__ import annotations

from typing import Any

from rebinding.paper.claim import Claim
from rebinding.world.designs import ModeName

IIA = "normalised IIA, the largest over layers and tokens"
ROWS: dict[str, Any] = {"source": "section 3, results", "metrics": ("iia",), "statistic": IIA}
CHANGE = "change of logit(counterfactual's answer) - logit(original's answer), all layers patched at once"
PARTNER_IN_CONTEXT: ModeName = "context_target_box_and_swap_query_box"
PARTNER_TO_REMAINING: ModeName = "swap_target_box_to_remaining_context_box"
REFERENCE = Claim(
    "tracing.reference_box_not_from_context",
    "Putting the asked box's label back where it is first mentioned does not bring the answer back.",
    kind="no-effect",
    where="mode context_and_swap; every layer, at the asked box's first mention",
    **ROWS,
)
PARTNER = Claim(
    "tracing.swap_box_not_from_context",
    "Putting the partner's label back where it is first mentioned does not bring the answer back.",
    kind="no-effect",
    where=f"mode {PARTNER_IN_CONTEXT}; every layer, at the partner's first mention",
    **ROWS,
)
EMERGE = Claim(
    "tracing.boxes_emerge_after_swap",
    "Which box is meant matters from the swap sentence on, and in the end at the readout.",
    kind="effect",
    where=f"modes swap_only and {PARTNER_TO_REMAINING}; every layer, at the swap's edited label and at the readout",
    **ROWS,
)
DIRECT = Claim(
    "tracing.object_direct",
    "The object's identity sits on its own token and then at the readout, and nowhere in between.",
    kind="effect",
    where="mode target_box; every layer, at the object, the swap's full stop, the question's box and the readout",
    **ROWS,
)
NOT_THROUGH = Claim(
    "tracing.object_not_through_labels",
    "No token of a box's label carries the identity of the object.",
    kind="no-effect",
    where="mode target_box; every layer, at every label",
    **ROWS,
)
OVER_PERIOD = Claim(
    "tracing.readout_over_swap_period",
    "Patching the readout moves the answer more than patching the end of the swap sentence.",
    "section 3, where the state is resolved",
    "ordering",
    ("margin",),
    f"{CHANGE}, mean over the questions",
    f"mode {PARTNER_TO_REMAINING}, counterfactual into original; readout against the swap's full stop",
)
LOCAL = Claim(
    "tracing.prefix_effect_local",
    "Patching the end of the swap helps the question about the asked box more than the others; the readout helps all.",
    "section 3, where the state is resolved",
    "ordering",
    ("margin",),
    CHANGE,
    f"mode {PARTNER_TO_REMAINING}, counterfactual into original; the swap's full stop and the readout",
)
