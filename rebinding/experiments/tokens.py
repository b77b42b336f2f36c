"""Encoded prompts as tensors: their tokens, and where a role stands in each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rebinding.world.places import token_at
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
    """Where `role`, or a token of another name, stands in each prompt."""
    found = [token_at(role, one.roles) for one in encoded]
    there = [at for at in found if at is not None]
    if len(there) < len(found):
        lacking = encoded[found.index(None)]
        raise PromptError(
            f"{len(found) - len(there)} of {len(encoded)} prompts have no role {role!r}; the first of them has"
            f" {', '.join(lacking.roles)}"
        )
    return torch.tensor(there, dtype=torch.long)  # (prompt,)
