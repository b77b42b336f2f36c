"""All seeds, except that of a prompt, which is its id."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

RANDOM_CIRCUITS = 21
"""As published."""
WALKS = 0
"""The shuffled orders of pruning."""
MATCHED = 0
"""Matched random directions, and the heads that serve as controls."""
RESAMPLED = 0
"""Selections of heads on resampled prompts."""
PUBLISHED_NOISE: Mapping[str, int] = MappingProxyType({"q": 1006, "k_at_j": 1007, "k_at_i": 1008})
"""The published seeds of the random query shift and of the random key shifts at the two slots."""
