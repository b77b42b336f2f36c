"""Pairs of a search: prompts of the counterbalanced design and the noise that belongs to them."""

from __future__ import annotations

from collections.abc import Sequence

from rebinding.experiments.prompts import Stories
from rebinding.experiments.search.measure import search_pairs
from rebinding.experiments.search.pairs import SearchPairs
from rebinding.experiments.search.request import NOISE
from rebinding.task.prompts import Encoder


def noise_pairs(encoder: Encoder, ids: Sequence[int]) -> SearchPairs:
    """The pairs of these ids."""
    prompts = Stories(encoder)
    pairs = prompts.draw(prompts.design("counterbalanced"), ids, ("noise", NOISE))
    return search_pairs(encoder, prompts.encode(pairs))
