"""Encoded prompts as tensors: token ids, positions of roles, blocks of prompts, and what a read keeps of logits and
attention patterns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rebinding.surgery import Surgeon
from rebinding.surgery.sites import Reduce
from rebinding.task.prompts import PromptError, TokenizedPrompt, unequal
from rebinding.task.text import token_at

BLOCK = 20
"""Prompts of a block of evidence in section 3: an interrupted run loses them."""


def token_batch(encoded: Sequence[TokenizedPrompt]) -> Tensor:
    """Token ids of prompts of equal length. Nothing is ever padded: unequal lengths are an error."""
    if not encoded:
        raise PromptError("no prompts given; a batch needs at least one")
    for prompt in encoded:
        if len(prompt) != len(encoded[0]):
            raise PromptError(unequal(encoded[0], prompt))
    return torch.tensor([prompt.ids for prompt in encoded], dtype=torch.long)  # (prompt, token)


def positions(encoded: Sequence[TokenizedPrompt], role: str) -> Tensor:
    """The position of `role`, or of another token name, in each prompt."""
    tokens = [token_at(role, prompt.roles) for prompt in encoded]
    places = [token for token in tokens if token is not None]
    if len(places) < len(tokens):
        first = encoded[tokens.index(None)]
        raise PromptError(
            f"{len(tokens) - len(places)} of {len(encoded)} prompts have no role {role!r}; the first of them has"
            f" {', '.join(first.roles)}"
        )
    return torch.tensor(places, dtype=torch.long)  # (prompt,)


def attention_on(keys: Tensor) -> Reduce:
    """Keep the attention on some keys, a line of `keys` (row, key) for each row: (row, head, key)."""

    def take(pattern: Tensor, rows: Tensor) -> Tensor:
        index = keys[rows].to(pattern.device)[:, None].expand(-1, pattern.shape[1], -1)
        return pattern[:, :, 0].gather(-1, index).float()

    return take


def answer_of(tokens: Tensor, rivals: Tensor) -> Reduce:
    """Keep the logit, full-softmax probability and lead of one token for each row: (row, position, 3).

    The lead is the logit minus the mean logit of the `rivals` (row, rival), the other objects of the story. It is
    linear in the logits, so what lifts every object alike does not count, and it still changes where the probability is
    so near 1 that a relative change says nothing. Without rivals it is the logit itself.
    """

    def take(logits: Tensor, rows: Tensor) -> Tensor:
        def gathered(candidates: Tensor) -> Tensor:
            index = candidates[rows].to(logits.device)[:, None, :].expand(-1, logits.shape[1], -1)
            return logits.gather(-1, index).float()  # (row, position, token)

        logit = gathered(tokens[:, None])  # (row, position, 1)
        log_total = torch.logsumexp(logits.float(), dim=-1, keepdim=True)  # (row, position, 1)
        lead = logit - gathered(rivals).mean(-1, keepdim=True) if rivals.shape[1] else logit
        return torch.cat([logit, torch.exp(logit - log_total), lead], dim=-1)

    return take


def relative_change(new: Tensor, old: Tensor) -> Tensor:
    """The largest change along the last axis, as a share of the largest value there, old or new.

    0 is a no-op edit, which writes what is there already; no edit gives more than 2.
    """
    new, old = new.float(), old.float()
    size = torch.maximum(new.abs(), old.abs()).amax(dim=-1)
    return (new - old).abs().amax(dim=-1) / size.clamp_min(torch.finfo(torch.float32).tiny)


def prompt_blocks(surgeon: Surgeon, prompts: Sequence[TokenizedPrompt], size: int | None = None) -> Iterator[slice]:
    """Slices of prompts to record and edit together, `size` of them or as many as the surgeon takes. Experiments on the
    same prompts use the same slices, so that one recording can serve several."""
    if not prompts:
        return iter(())
    return blocks(len(prompts), size or surgeon.prompts_at_once(len(prompts[0])))


def blocks(count: int, size: int) -> Iterator[slice]:
    """Slices that cover `count` items, `size` at a time."""
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))
