"""The tracing mode for each panel of the paper's figure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

from rebinding.task.designs import ModeName

PanelName: TypeAlias = Literal["reference_box", "swap_target_box", "object"]


@dataclass(frozen=True)
class Panel:
    """A panel of the paper's figure: our mode for it, other possible modes, and the reason."""

    mode: ModeName
    alternatives: tuple[ModeName, ...]
    reason: str


PANELS: Mapping[PanelName, Panel] = MappingProxyType(
    {
        "reference_box": Panel(
            "swap_only",
            ("context_and_swap",),
            "It is the one configuration that was published, its counterfactual has an answer, and so its base is near"
            " 0. But it says nothing of the first mention, which is the same token in both prompts. For that take"
            " context_and_swap (the appendix speaks of this experiment's tokens in the plural): there the first mention"
            " differs and the one in the swap stays counterfactual while it is patched. Its counterfactual asks about"
            " an absent box, so its base can be anything: read it beside the map.",
        ),
        "swap_target_box": Panel(
            "swap_target_box_to_remaining_context_box",
            ("swap_target_box", "context_target_box_and_swap_query_box"),
            "The appendix speaks of one token. Of the two modes that edit the partner's mention alone, this one names a"
            " box that exists, so that the counterfactual is a story with an answer to every question. For the first"
            " mention take context_target_box_and_swap_query_box: it alone edits the partner's label there, keeps"
            " another edit, and changes the answer. (context_and_swap_target_box does not change it.)",
        ),
        "object": Panel(
            "target_box",
            (
                "swap_target_object_with_remaining_context_object",
                "context_target_object_and_swap_query_box",
            ),
            "The appendix speaks of one token, and this is the only mode that edits one object and changes the answer.",
        ),
    }
)
"""The paper does not say which edit made which panel; this is our reading."""
