"""The kinds of evidence of section 3, with their columns (what each means: `rows`, `diagnostic`)."""

from __future__ import annotations

from rebinding.evidence import Kind

SCORES = ("hit", "hit_with_counterfactual", "margin", "counterfactual_margin", "answer_logit")
CELL = ("prompt", "mode", "layer", "token", "place", "role", "differs", "ran", "moved")
TRACING = Kind(
    "tracing",
    (*CELL, *SCORES, *(f"base_{name}" for name in SCORES)),
    lacking=("counterfactual_margin", "base_counterfactual_margin"),
    edits=("prompt",),
)
EVERY_TOKEN = "every token"
"""What a map says of its roles that was made at all tokens."""
MENTION = Kind(
    "first-mention",
    ("prompt", "mode", "layer", "patched", "moved", *SCORES, *(f"base_{name}" for name in SCORES)),
    lacking=("counterfactual_margin", "base_counterfactual_margin"),
    edits=("prompt", "patched"),
)
DIAGNOSTIC = Kind(
    "readout-diagnostic",
    (
        *("prompt", "question", "place", "first", "last", "margin", "base_margin", "change", "hit"),
        *("original_correct", "counterfactual_correct", "moved"),
    ),
    edits=("prompt", "question", "place"),
)
