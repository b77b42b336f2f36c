"""The noise floor: a bound on the mean change that null edits make."""

from __future__ import annotations

from rebinding.evidence import Evidence
from rebinding.evidence.evidence import cache_by_evidence
from rebinding.experiments.unedited.request import NULL_EDIT
from rebinding.paper.claim import Claim
from rebinding.verdicts.gates import common_shift

IN_LOGITS = ("margin", "logit", "dlogit")
"""Metrics that are logits, or differences of them."""


def smallest_change(claim: Claim) -> float | None:
    """The smallest change in logits that counts for a claim; None for a claim that is not about logits."""
    return min((claim.margin(metric) for metric in claim.metrics if metric in IN_LOGITS), default=None)


@cache_by_evidence
def floor_of(evidence: Evidence) -> float:
    """A bound on the mean change of null edits in logits: the largest over null edits."""
    return max(
        common_shift(evidence.rows.pivot(index=NULL_EDIT, columns="prompt", values=measure).to_numpy())
        for measure in ("logit", "lead")
    )
