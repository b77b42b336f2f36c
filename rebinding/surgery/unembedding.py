"""Logits of the last layer's output, as much of the vocabulary as is read."""

from __future__ import annotations

from torch import Tensor, nn

from rebinding.surgery.anatomy import Anatomy
from rebinding.surgery.sites import LogitsOf, Read, Reduce


def reduced_logits(model: nn.Module, anatomy: Anatomy, resid: Tensor, reduce: Reduce | None, rows: Tensor) -> Tensor:
    """What a reduction keeps of the logits of `resid` (row, position, hidden), for these rows of a call.

    Of the reduction to some tokens only their logits are computed. The product with the whole vocabulary is the largest
    of a run that continues one token: as large as all layers of Gemma-3-270M together.
    """
    if isinstance(reduce, LogitsOf):
        return anatomy.logits(model, resid, reduce.tokens[rows]).float()  # (row, position, token)
    logits = anatomy.logits(model, resid)
    return logits if reduce is None else reduce(logits, rows)


def reads_vocabulary(read: Read) -> bool:
    """Whether a read needs the logits of the whole vocabulary."""
    return read.site == "logits" and not isinstance(read.reduce, LogitsOf)
