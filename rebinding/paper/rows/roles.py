"""Section 4.2: what the head groups do."""

from __future__ import annotations

from typing import Any

from rebinding.paper.claim import Claim

ROW: dict[str, Any] = {
    "source": "section 4.2, results",
    "metrics": ("dlogit",),
    "statistic": "mean change of the logit of the object at the counterfactual's place (pointer pairs), or of the new"
    " object (content control)",
    "where": "attention patterns of whole groups at the readout",
}
WITH_B: dict[str, Any] = ROW | {"groups": ("B",)}
MOVES = Claim(
    "roles.b_moves_pointer",
    "With the counterfactual's attention in group B, the object at the counterfactual's place gains this much.",
    kind="value",
    asserted=("gemma2-9b",),
    **WITH_B,
)
LEAVES = Claim(
    "roles.b_leaves_content",
    "With the counterfactual's attention in group B, a new object in the same place gains next to nothing.",
    kind="value",
    asserted=("gemma2-9b",),
    **WITH_B,
)
A_VALUES = Claim(
    "roles.a_on_g9",
    "Group A moves the pointer target less, and the new object not at all.",
    kind="value",
    asserted=("gemma2-9b",),
    groups=("A",),
    **ROW,
)
IS_POINTER = Claim(
    "roles.b_is_the_pointer",
    "Group B moves the pointer target more than any other group does.",
    kind="ordering",
    asserted=("gemma2-9b", "gemma3-12b", "llama3.1-8b"),
    **WITH_B,
)
SMALL_ON_CONTENT = Claim(
    "roles.b_small_on_content",
    "Group B moves the pointer target more than it moves a new object.",
    kind="ordering",
    asserted=("gemma2-9b", "gemma3-12b", "llama3.1-8b"),
    **WITH_B,
)
WEAKER = Claim(
    "roles.a_and_c_weaker",
    "Groups A and C move the pointer target too, less than B.",
    kind="ordering",
    asserted=("gemma2-9b",),
    **(ROW | {"groups": ("B", "A", "C")}),
)
CARRIES = Claim(
    "roles.a_carries_content",
    "Group A brings the new object in, and takes the pointer target down.",
    kind="effect",
    asserted=("gemma3-12b", "llama3.2-3b", "llama3.1-8b"),
    groups=("A",),
    **ROW,
)
EXCEPTION = Claim(
    "roles.llama3b_exception",
    "Some other group moves the pointer target more than B does.",
    kind="ordering",
    asserted=("llama3.2-3b",),
    **WITH_B,
)
