"""Write the lines of one layer into its four projections.

After the input norm the constant is worth sqrt(hidden) and a unit feature `layout.unit`; dividing by these, keys and
values hold features as they are, queries hold nats, and what a head adds to the residual is again in features. The
score is divided by sqrt(scaling), so queries are multiplied by it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rebinding.planted.compiler.layout import NOISE, Layout
from rebinding.planted.compiler.packing import Seat
from rebinding.planted.language.rope import phases, position_dimensions
from rebinding.planted.language.wiring import GATE, Softness, gain, strengths, threshold

LOUD = 2.0
"""Factor by which kinds of tokens are larger in a key than content, and correspondingly smaller in a query.

An arbitrary shift of a key, as large as the difference between two slots, then does little to a gate. (With more than 2
an arbitrary shift of a query would do too much to the sink.)"""


@dataclass(frozen=True)
class Projections:
    """The projections of one layer, split by head."""

    q: Tensor  # (head, head_dim, hidden)
    k: Tensor  # (kv head, head_dim, hidden)
    v: Tensor  # (kv head, head_dim, hidden)
    o: Tensor  # (head, hidden, head_dim)

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return len(self.q) // len(self.k)


@dataclass(frozen=True)
class Scale:
    """The numbers that turn nats and features into weights: rotary frequencies, score scale, softness."""

    frequencies: Tensor
    distance: float
    scaling: float
    softness: Softness


def zeros(layout: Layout, heads: int, kv_heads: int) -> Projections:
    """The projections of a layer, all zero."""
    wide, narrow = (heads, layout.head_dim, layout.hidden), (kv_heads, layout.head_dim, layout.hidden)
    return Projections(
        torch.zeros(wide), torch.zeros(narrow), torch.zeros(narrow), torch.zeros(heads, layout.hidden, layout.head_dim)
    )


def write_line(seat: Seat, projections: Projections, layout: Layout, scale: Scale) -> None:
    """Write one line into the query and output of its head, and the keys and values of its KV head."""
    kv = seat.head // projections.group
    projections.q[seat.head] = _query(seat, layout, scale) * scale.scaling**0.5
    projections.k[kv] = _keys(seat, layout)
    for (_, name), dimensions in seat.values.items():
        projections.v[kv, dimensions] = layout.vector(name) / layout.unit
    compensation = gain(seat.line, scale.softness)
    for space, source in seat.line.writes:
        rows = torch.tensor(layout.directions(space))
        for weight, name in source:
            projections.o[seat.head, rows, torch.tensor(seat.values["value", name])] += weight * compensation


def constant(layout: Layout) -> Tensor:
    """The row that reads 1 at every token."""
    row = torch.zeros(layout.hidden)  # (hidden)
    row[layout.spaces["constant"]] = layout.hidden**-0.5
    return row


def _query(seat: Seat, layout: Layout, scale: Scale) -> Tensor:
    line, rows = seat.line, torch.zeros(layout.head_dim, layout.hidden)  # (head_dim, hidden)
    _, match = strengths(line, scale.softness)
    query_kinds = layout.kinds(line.at) / layout.unit / LOUD
    rows[seat.keys["sink", ""]] = -threshold(line, scale.softness, scale.distance) * constant(layout) / LOUD
    rows[seat.keys["gate", line.look]] = GATE * query_kinds
    if line.prefer:
        rows[seat.keys["prefer", line.prefer]] = match * query_kinds
    for query, key in line.matches:
        rows[seat.keys["match", layout.text(key)]] += match * layout.vector(query) / layout.unit
    for kind, distance in line.distances:
        amounts_by_pair = scale.distance / LOUD * phases(scale.frequencies, distance)  # (cosine or sine, pair)
        for dimensions, amounts in zip(position_dimensions(len(scale.frequencies)), amounts_by_pair, strict=True):
            rows[dimensions] += amounts[:, None] * layout.kinds(kind) / layout.unit
    return rows


def _keys(seat: Seat, layout: Layout) -> Tensor:
    """All keys of a seat's KV head, for all of its lines."""
    rows = torch.zeros(layout.head_dim, layout.hidden)  # (head_dim, hidden)
    for (use, text), dimensions in seat.keys.items():
        if use == "match":
            rows[dimensions] = layout.vector(text) / layout.unit
        elif use == "sink":
            rows[dimensions] = LOUD * (constant(layout) - layout.kinds("start") / layout.unit)
        else:
            rows[dimensions] = LOUD * layout.kinds(text) / layout.unit
    return rows


def write_decoy(head: int, free_kv: bool, projections: Projections, layout: Layout, random: torch.Generator) -> None:
    """Write small random weights. A decoy reads anything and writes only to directions that no line reads."""
    kv = head // projections.group
    reader = torch.full((layout.hidden,), 1.0 / layout.unit)  # (hidden)
    reader[layout.spaces["constant"]] = layout.hidden**-0.5
    for target, size in (
        (projections.q[head], 0.5),
        *(((projections.k[kv], 0.5), (projections.v[kv], 0.1)) if free_kv else ()),
    ):
        target += size * torch.randn(target.shape, generator=random) * reader
    noise = layout.spaces[NOISE]
    shape = (noise.stop - noise.start, layout.head_dim)
    projections.o[head, noise] = 0.05 * torch.randn(shape, generator=random)
