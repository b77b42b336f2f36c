"""The kinds of evidence of section 5, with their columns."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from rebinding.evidence import Kind

KeyKind: TypeAlias = Literal["box", "object"]
KINDS: tuple[KeyKind, ...] = get_args(KeyKind)
"""The two tokens of a slot whose keys are shifted and looked at."""

BINDING = Kind(
    "binding",
    ("prompt", "i", "j", "correct", "condition", "draw", "layer", "head", "moved"),
    numbered=r"(before|after)_(box|object|logit)_\d+",
    edits=(),  # a direction measured to be nothing is a finding; together they must move something
)
EXCHANGE = Kind("exchange", BINDING.columns, numbered=BINDING.numbered, edits=())
"""The same with real queries and keys in the place of shifted ones."""
DIRECTIONS = Kind("directions", ())
