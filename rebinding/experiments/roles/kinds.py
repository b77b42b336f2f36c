"""The kind of evidence of section 4.2, with its columns."""

from __future__ import annotations

from rebinding.evidence import Kind

ROLES = Kind(
    "roles",
    (
        *("prompt", "answer_slot", "word", "text", "token", "group", "layer", "head"),
        *("before", "after", "counterfactual", "future_mass", "moved"),
    ),
    edits=(),
)
WORDS = ("answer", "new_object", "pointed_object")
WHOLE_GROUP = -1
"""Layer and head of the rows in which all heads of a group are patched together."""
