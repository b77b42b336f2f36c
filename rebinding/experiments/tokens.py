"""Encoded prompts as tensors: their tokens, where a role stands in each, blocks of prompts, and what is read of logits
and patterns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rebinding.surgery.sites import Take
from rebinding.task.prompts import Encoded, PromptError, unequal
from rebinding.task.text import token_at

BLOCK = 20
"""Prompts whose runs are held in memory at once, and that are lost when a run is interrupted. Experiments on the same
prompts cut them in the same places, so that one recording can serve several."""


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


def logits_of(tokens: Tensor) -> Take:
    """Keep the logits of some tokens, one line of `tokens` (row, candidate) a row: (row, position, candidate)."""

    def take(logits: Tensor, rows: Tensor) -> Tensor:
        wanted = tokens[rows].to(logits.device)[:, None, :].expand(-1, logits.shape[1], -1)
        return logits.gather(-1, wanted).float()  # (row, position, candidate)

    return take


def attention_on(keys: Tensor) -> Take:
    """Keep the attention on some keys, one line of `keys` (row, key) a row: (row, head, key)."""

    def take(pattern: Tensor, rows: Tensor) -> Tensor:
        wanted = keys[rows].to(pattern.device)[:, None].expand(-1, pattern.shape[1], -1)
        return pattern[:, :, 0].gather(-1, wanted).float()

    return take


def answer_of(tokens: Tensor, rivals: Tensor) -> Take:
    """Keep of one token a row: logit, full-softmax probability, and lead; (row, position, 3).

    The lead is the logit less the mean logit of the `rivals` (row, rival), the other objects of the story. It is linear
    in the logits, so that what lifts every object alike does not count, and it goes on moving where the probability is
    so near 1 that a relative change says nothing. Without rivals it is the logit itself.
    """

    def take(logits: Tensor, rows: Tensor) -> Tensor:
        def gathered(wanted: Tensor) -> Tensor:
            index = wanted[rows].to(logits.device)[:, None, :].expand(-1, logits.shape[1], -1)
            return logits.gather(-1, index).float()  # (row, position, token)

        logit = gathered(tokens[:, None])  # (row, position, 1)
        log_total = torch.logsumexp(logits.float(), dim=-1, keepdim=True)  # (row, position, 1)
        lead = logit - gathered(rivals).mean(-1, keepdim=True) if rivals.shape[1] else logit
        return torch.cat([logit, torch.exp(logit - log_total), lead], dim=-1)

    return take


def moved(new: Tensor, old: Tensor) -> Tensor:
    """How far edits are from what they replace: the largest change along the last axis, as a share of what is there.

    0 is an edit that writes what is there already; no edit is more than 2.
    """
    new, old = new.float(), old.float()
    size = torch.maximum(new.abs(), old.abs()).amax(dim=-1)
    return (new - old).abs().amax(dim=-1) / size.clamp_min(torch.finfo(torch.float32).tiny)


def blocks(count: int, size: int) -> Iterator[slice]:
    """Slices that walk through `count` items, `size` at a time."""
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))
