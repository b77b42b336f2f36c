"""The pair of a prompt by the name of its kind."""

from __future__ import annotations

from rebinding.task.designs.design import NOISE_KINDS, Design, Pair
from rebinding.task.designs.tracing import TRACING_MODES
from rebinding.task.words import DesignError

ROLE_PAIRS = ("content_control", "pointer", "structure_only_pointer")
PAIRS = (*TRACING_MODES, *NOISE_KINDS, *ROLE_PAIRS)
"""Every kind of counterfactual: of activation patching, of path patching, and of head-role patching."""


def pair_of(stories: Design, prompt_id: int, kind: str) -> Pair:
    """The pair of a kind."""
    if kind in TRACING_MODES:
        return stories.tracing(prompt_id, kind)
    for noise in NOISE_KINDS:
        if kind == noise:
            return stories.noise(prompt_id, noise)
    match kind:
        case "content_control":
            return stories.content_control(prompt_id)
        case "pointer":
            return stories.pointer(prompt_id)
        case "structure_only_pointer":
            return stories.structure_only_pointer(prompt_id)
    raise DesignError(f"there is no pair {kind!r}; the kinds are {', '.join(PAIRS)}")
