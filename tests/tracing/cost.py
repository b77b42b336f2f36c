"""What a tracing map costs, counted and not measured: multiply-adds of the replayed cells and of one pass a cell.

Counted are matrix products: projections, MLP, attention, and the logits of one token. Norms, softmax and the filter are
left out on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rebinding.experiments.tracing.maps import cells_of, work_of
from rebinding.surgery import Anatomy


@dataclass(frozen=True)
class TracingCost:
    """Multiply-adds of a map over `prompts` pairs: recording both runs and replaying, and one forward pass a cell."""

    cells: int
    cells_run: int
    replayed: int
    naive: int

    @property
    def ratio(self) -> float:
        """How many times less work the replay does."""
        return self.naive / self.replayed


def tracing_cost(
    anatomy: Anatomy, *, inner: int, length: int, differing: tuple[int, ...], prompts: int = 1
) -> TracingCost:
    """The cost of the full map of a mode whose pairs differ in the tokens `differing`; `inner` is the MLP's width.

    The naive procedure is granted that it computes logits of one token only. The replay computes nothing but keys and
    values in the last layer, except for the token that is read. Recordings are counted in full: that prompts begin
    alike makes them cheaper by a share that depends on the batch.
    """
    layers, tokens = range(anatomy.n_layers), range(length)
    cells = cells_of(differing, layers, tokens)[None]  # (prompt, layer, token)
    per_token_layer, logits = operations(anatomy, inner, length), anatomy.hidden * anatomy.vocabulary
    whole = anatomy.n_layers * length * per_token_layer + logits
    replayed = int(work_of(cells, layers, tokens, length, anatomy.n_layers).sum()) * per_token_layer
    unread = int((cells * (length - 1 - torch.arange(length))).sum())  # tokens of the last layer, over all cells
    replayed -= unread * (per_token_layer - 2 * anatomy.hidden * anatomy.n_kv_heads * anatomy.head_dim)
    run, every = int(cells.sum()), anatomy.n_layers * length
    return TracingCost(
        every * prompts, run * prompts, (2 * whole + replayed + run * logits) * prompts, (every + 1) * whole * prompts
    )


def operations(anatomy: Anatomy, inner: int, length: int) -> int:
    """Multiply-adds of one token in one layer, whose attention sees `length` keys."""
    heads, kv = anatomy.n_heads * anatomy.head_dim, anatomy.n_kv_heads * anatomy.head_dim
    projections = anatomy.hidden * (heads + 2 * kv) + heads * anatomy.hidden
    return projections + 3 * anatomy.hidden * inner + 2 * heads * length
