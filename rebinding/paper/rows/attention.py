"""Section 4.1: what the text says that groups of the circuit look at."""

from __future__ import annotations

from typing import Any

from rebinding.paper.claim import Claim

ROW: dict[str, Any] = {
    "source": "section 4.1, rebinding circuit",
    "kind": "ordering",
    "metrics": ("attention",),
    "statistic": "attention on that token, mean over the group's heads, less an even share, and less that on every"
    " other token with a role before it",
}
A_LOOKS = Claim(
    "circuit.a_attends_to_object",
    "Group A looks at the answer's object in the context, more than at any other token with a role.",
    where="group A, at the readout",
    groups=("A",),
    **ROW,
)
C_LOOKS = Claim(
    "circuit.c_attends_to_earlier_box",
    "Group C looks at the label of an earlier box, of those from which the updated binding can be had, more than at any"
    " other token with a role: in the swap the asked box's or its partner's, or the partner's in the context.",
    where="group C, at the question's box",
    groups=("C",),
    **ROW,
)


def twice(claim: Claim) -> tuple[Claim, Claim]:
    """As published, and where nothing about a token's place says which one it is."""
    return claim, claim.controlled(where=f"{claim.where}; counterbalanced prompts")
