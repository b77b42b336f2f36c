"""Encoded prompts as tensors: their tokens, and where a role stands in each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rebinding.world.prompts import Encoded, PromptError, unequal


def token_batch(encoded: Sequence[Encoded]) -> Tensor:
    """Token ids of prompts of equal length. Nothing is ever padded: unequal lengths are an error."""
    if not encoded:
        raise PromptError("no prompts given; a batch needs at least one")
    for one in encoded:
        if len(one) != len(encoded[0]):
            raise PromptError(unequal(encoded[0], one))
    return torch.tensor([one.ids for one in encoded], dtype=torch.long)  # (prompt, token)


def positions(encoded: Sequence[Encoded], role: str) -> Tensor:
    """Where `role` stands in each prompt."""
    lacking = [one for one in encoded if role not in one.roles]
    if lacking:
        raise PromptError(
            f"{len(lacking)} of {len(encoded)} prompts have no role {role!r}; the first of them has"
            f" {', '.join(lacking[0].roles)}"
        )
    return torch.tensor([one.roles[role] for one in encoded], dtype=torch.long)  # (prompt,)
