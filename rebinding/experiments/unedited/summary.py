"""The noise floor: what doing nothing surely does not exceed."""

from __future__ import annotations

from rebinding.evidence import Evidence
from rebinding.evidence.evidence import once
from rebinding.experiments.unedited.request import NULL_EDIT
from rebinding.paper.claim import Claim
from rebinding.verdicts.gates import common_shift

IN_LOGITS = ("margin", "logit", "dlogit")
"""Metrics that are logits, or differences of them."""


def smallest_change(claim: Claim) -> float | None:
    """The smallest change in logits that counts for a claim; none, where it is not about logits."""
    return min((claim.margin(metric) for metric in claim.metrics if metric in IN_LOGITS), default=None)


@once
def floor_of(evidence: Evidence) -> float:
    """What doing nothing surely does not exceed in the mean, in logits: that of the null edit which does most."""
    return max(
        common_shift(evidence.rows.pivot(index=NULL_EDIT, columns="prompt", values=measure).to_numpy())
        for measure in ("logit", "lead")
    )
