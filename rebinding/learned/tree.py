"""Many prompts as one sequence: a common prefix of prompts is computed once.

Prompts of a template begin with the same words, and questions about one story follow the same story. A batch is written
as a tree: a token is a node, its parent is the token before it, and every different prefix has one node. A node has the
position of its depth and attends to its ancestors and itself, as a causal model does with each prompt alone: the
numbers are the same, for less than half of the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tree:
    """A batch as a tree; `ends` are the nodes of the prompts' last tokens, in their order."""

    ids: Tensor  # (1, node)
    positions: Tensor  # (1, node)
    sees: Tensor  # (1, 1, node, node), whether the first attends to the second
    ends: Tensor  # (prompt,)

    def mask(self, dtype: torch.dtype) -> Tensor:
        """The mask that is added to attention scores."""
        return torch.zeros(self.sees.shape, dtype=dtype).masked_fill(~self.sees, torch.finfo(dtype).min)


def tree(prompts: Sequence[Sequence[int]]) -> Tree:
    """The tree of some prompts."""
    nodes: dict[tuple[int, int], int] = {}  # (parent, token) -> node
    ends = []
    for ids in prompts:
        node = -1
        for token in ids:
            node = nodes.setdefault((node, token), len(nodes))
        ends.append(node)
    sees = torch.eye(len(nodes), dtype=torch.bool)
    for (parent, _), node in nodes.items():  # parents come first
        if parent >= 0:
            sees[node] |= sees[parent]
    return Tree(
        ids=torch.tensor([[token for _, token in nodes]]),
        positions=(sees.sum(dim=1) - 1)[None],
        sees=sees[None, None],
        ends=torch.tensor(ends),
    )
