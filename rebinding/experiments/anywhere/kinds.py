"""The kinds of evidence that the search makes."""

from __future__ import annotations

from rebinding.evidence import Kind

STEPS = Kind(
    "anywhere",
    (
        "prompt",
        "component",
        "layer",
        "head",
        "token",
        "place",
        "function",
        "before",
        "after",
        "moved",
    ),
)
"""A row for a prompt and a sender (head at a token) that was run: the score before and after, and how far the receivers
moved (what they write anew, as a share of the residual there). `component` is `direct` where the receiver is the
logits. Senders without a row cannot change the score, or not by as much as anybody asks for."""
CROSSINGS = Kind("crossings", ("prompt", "crossing", "expected", "elsewhere"))
"""A row for a prompt and a crossing from one part of it to a later one: what of the score is lost without the messages
that leave from the expected tokens of the first part, and without those that leave from its other tokens."""
