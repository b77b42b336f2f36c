"""Operation counts (multiply-adds) of path patching: the naive schedule, and the least that is exact.

The naive schedule is 9 x heads x prompts full forwards with the logits of the last row. The least is what remains when
everything that provably cannot change the result is left out: layers below the sender, tokens before it and after the
last one read, senders above every receiver, attention where it is frozen, layers below the first receiver that moves,
and in the last layer all but the keys and values of tokens that are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rebinding.experiments.paths.request import Stage


@dataclass(frozen=True)
class Shape:
    """Sizes that operations are counted from."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    inner: int
    vocabulary: int
    tokens: int

    @property
    def output(self) -> int:
        """The output projection, a token."""
        return self.heads * self.head_dim * self.hidden

    @property
    def projections(self) -> int:
        """Query, key, value and output projections, a token."""
        return self.output + self.hidden * self.head_dim * (self.heads + 2 * self.kv_heads)

    @property
    def mlp(self) -> int:
        """A gated MLP, a token."""
        return 3 * self.hidden * self.inner

    @property
    def head(self) -> int:
        """Logits, a row."""
        return self.hidden * self.vocabulary

    def attention(self, first: int, last: int) -> int:
        """Scores and mixing for the queries `first..last` over all keys before them."""
        return 2 * self.heads * self.head_dim * sum(position + 1 for position in range(first, last + 1))

    def layer(self, first: int, last: int) -> int:
        """A whole layer for a window of tokens."""
        return (last - first + 1) * (self.projections + self.mlp) + self.attention(first, last)

    def read(self, first: int, last: int) -> int:
        """The last layer for a window of tokens of which the last one is read."""
        keys_and_values = 2 * self.hidden * self.head_dim * self.kv_heads
        return (last - first) * keys_and_values + self.layer(last, last)

    def forward(self) -> int:
        """A full forward with the logits of the last row."""
        return self.layers * self.layer(0, self.tokens - 1) + self.head


def naive(shape: Shape, stage: Stage) -> int:
    """One stage for one prompt: one or two full forwards per head."""
    runs = 1 if stage.component is None else 2
    return runs * shape.layers * shape.heads * shape.forward()


def minimum_cost(
    shape: Shape, stage: Stage, roles: dict[str, int], receivers: Sequence[tuple[int, int]], *, frozen: bool
) -> int:
    """One stage for one prompt: what cannot be left out. Recording the prompt is left to whoever keeps it."""
    sender = roles[stage.sender]
    if stage.component is None:
        return sum(
            shape.heads * (_send(shape, sender, sender, layer, shape.layers, frozen) + shape.head)
            for layer in range(shape.layers)
        )
    at, readout = roles[stage.at or ""], roles["readout"]
    levels = sorted({layer for layer, _ in receivers})
    if frozen and at != sender:
        return 0
    total = 0
    for layer in range(levels[-1]):
        first = min(level for level in levels if level > layer)
        arrive = sum(_port(shape, stage, receivers, level) for level in levels if level > layer)
        receive = (shape.layers - first - 1) * shape.layer(at, readout) + shape.read(at, readout) + shape.head
        total += shape.heads * (_send(shape, sender, at, layer, levels[-1], frozen) + arrive + receive)
    return total


def _send(shape: Shape, sender: int, at: int, layer: int, stop: int, frozen: bool) -> int:
    """From a sender's z up to the input of layer `stop`: the first layer without its query, key and value."""
    first = shape.output + shape.mlp
    layer_cost = shape.mlp if frozen else shape.layer(sender, at)
    return first + (stop - layer - 1) * layer_cost


def _port(shape: Shape, stage: Stage, receivers: Sequence[tuple[int, int]], level: int) -> int:
    heads = {head for layer, head in receivers if layer == level}
    group = shape.heads // shape.kv_heads
    count = (
        len(heads) if stage.component == "q" else len({head // group for head in heads}) * len(stage.component or "")
    )
    return count * shape.head_dim * shape.hidden
