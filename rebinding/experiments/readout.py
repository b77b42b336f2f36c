"""What experiments share: how prompts are cut into blocks, and what is kept of a vocabulary of logits."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from rebinding.surgery.sites import Take

BLOCK = 20
"""Prompts whose runs are held in memory at once, and that are lost when a run is interrupted. Experiments on the same
prompts cut them in the same places, so that one recording can serve several."""


def logits_of(tokens: Tensor) -> Take:
    """Keep the logits of some tokens, one line of `tokens` (row, candidate) a row: (row, position, candidate)."""

    def take(logits: Tensor, rows: Tensor) -> Tensor:
        wanted = tokens[rows].to(logits.device)[:, None, :].expand(-1, logits.shape[1], -1)
        return logits.gather(-1, wanted).float()  # (row, position, candidate)

    return take


def logit_and_probability_of(tokens: Tensor) -> Take:
    """Keep logit and full-softmax probability of one token a row: (row, position, 2)."""

    def take(logits: Tensor, rows: Tensor) -> Tensor:
        wanted = tokens[rows].to(logits.device)[:, None, None].expand(-1, logits.shape[1], 1)
        logit = logits.gather(-1, wanted).float()  # (row, position, 1)
        log_total = torch.logsumexp(logits.float(), dim=-1, keepdim=True)  # (row, position, 1)
        return torch.cat([logit, torch.exp(logit - log_total)], dim=-1)

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
