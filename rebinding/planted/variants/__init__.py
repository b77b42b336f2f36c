"""Variants of mechanisms; each changes the truth of some claim."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rebinding.planted.language.wiring import WiringError
from rebinding.planted.variants.circuits import CIRCUITS
from rebinding.planted.variants.heads import HEADS
from rebinding.planted.variants.papers import PAPERS
from rebinding.planted.variants.roles import ROLES
from rebinding.planted.variants.stories import STORIES
from rebinding.planted.variants.tracing import TRACING
from rebinding.planted.variants.variant import Variant

__all__ = ["VARIANTS", "Variant", "variant_of"]

VARIANTS: Mapping[str, Variant] = MappingProxyType({**TRACING, **CIRCUITS, **HEADS, **ROLES, **STORIES, **PAPERS})


def variant_of(mechanism: str, name: str) -> Variant:
    """A variant by name, if the mechanism has it."""
    fitting = sorted(variant_name for variant_name, variant in VARIANTS.items() if mechanism in variant.mechanisms)
    if name not in fitting:
        raise WiringError(f"{mechanism} has no variant {name!r}; it has {', '.join(fitting) or 'none'}")
    return VARIANTS[name]
