"""From the lines of a layer to its four projections: slices of the stream, heads and their dimensions, and weights.

**Layout.** Each space has a slice of the residual stream; expressions are matrices that read or write it.

**Seats.** Heads of a KV group share keys and values. A KV head therefore holds every key piece and every value piece
that its lines need, each once; a query puts weight only on the pieces that its line uses, and the output projection
takes only the values that its line carries. Two lines fit into one group if their pieces fit; at most one token kind is
found by distance, because all heads of a group share the fast rotary pairs.

**Weights.** After the input norm the constant is worth sqrt(hidden) and a unit feature `layout.unit`; dividing by
these, keys and values hold features as they are, queries hold nats, and what a head adds to the residual is again in
features. The score is divided by sqrt(scaling), so queries are multiplied by it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from rebinding.planted.language import (
    ALIASES,
    BASE,
    CONSTANT,
    FAST,
    GATE,
    Expression,
    Line,
    Softness,
    WiringError,
    expression,
    gain,
    phases,
    position_dimensions,
    slow_dimensions,
    strengths,
    threshold,
)

NOISE, BALLAST = "noise", "ballast"
NOISE_SIZE = 16
"""Directions that only decoys and MLPs write, and that no head of the mechanism reads."""
MULTIPLE = 32
"""Hidden sizes are multiples of this."""


@dataclass(frozen=True)
class Layout:
    """Slices of the residual stream by name, and the sizes around it."""

    spaces: dict[str, slice]
    hidden: int
    head_dim: int

    def directions(self, name: str) -> list[int]:
        """The residual dimensions of a space, or of one direction of it (`slot[2]`)."""
        name = ALIASES.get(name, name)
        if name in self.spaces:
            span = self.spaces[name]
            return list(range(span.start, span.stop))
        space, _, index = name.rpartition("[")
        if space in self.spaces and int(index[:-1]) < self.width(space):
            return [self.spaces[space].start + int(index[:-1])]
        raise WiringError(f"there is no space or direction {name!r}; the spaces are {', '.join(self.spaces)}")

    def width(self, name: str) -> int:
        """The number of directions that a name stands for."""
        return len(self.directions(name))

    def vector(self, expr: Expression | str) -> Tensor:
        """The matrix that reads an expression of equally wide spaces, one row for each of its directions."""
        parts = expression(expr) if isinstance(expr, str) else expr
        widths = {self.width(name) for _, name in parts}
        if len(widths) > 1:
            raise WiringError(f"the spaces of {self.text(parts)!r} differ in size: {sorted(widths)}")
        matrix = torch.zeros(widths.pop(), self.hidden)  # (direction, hidden)
        for weight, name in parts:
            dimensions = self.directions(name)
            matrix[range(len(dimensions)), dimensions] += weight
        return matrix

    def kinds(self, expr: Expression | str) -> Tensor:
        """The vector that reads how much of an expression a token has, summed over directions."""
        parts = expression(expr) if isinstance(expr, str) else expr
        total = torch.zeros(self.hidden)  # (hidden)
        for weight, name in parts:
            total[self.directions(name)] += weight
        return total

    def text(self, expr: Expression) -> str:
        """An expression as text, the same for equal expressions."""
        return " + ".join(f"{gain:g} {ALIASES.get(name, name)}" for gain, name in expr)

    @property
    def unit(self) -> float:
        """The value of a unit feature after the input norm: sqrt(hidden) over the size of the constant."""
        return math.sqrt(self.hidden) / CONSTANT


def lay_out(spaces: dict[str, int], head_dim: int) -> Layout:
    """Base spaces, the mechanism's spaces, noise and ballast, one after the other."""
    sizes = BASE | spaces | {NOISE: NOISE_SIZE, BALLAST: 1}
    slices, start = {}, 0
    for name, size in sizes.items():
        slices[name] = slice(start, start + size)
        start += size
    return Layout(slices, -(-start // MULTIPLE) * MULTIPLE, head_dim)


RangeContent: TypeAlias = tuple[str, str]
"""The content of a range of key or value dimensions: a kind of use, and the text of the expression it reads."""
RangeSizes: TypeAlias = Callable[[Line, Layout], dict[RangeContent, int]]


@dataclass(frozen=True)
class Seat:
    """A line with its head and the dimensions of the pieces of its KV head."""

    line: Line
    head: int
    keys: dict[RangeContent, list[int]]
    values: dict[RangeContent, list[int]]


def key_pieces(line: Line, layout: Layout) -> dict[RangeContent, int]:
    """The key pieces that a line needs, with their sizes; distances use the fast pairs instead."""
    pieces: dict[RangeContent, int] = {}
    for _, key in line.matches:
        pieces["match", layout.text(key)] = len(layout.vector(key))
    pieces["sink", ""] = 1
    pieces["gate", line.look] = 1
    if line.prefer:
        pieces["prefer", line.prefer] = 1
    return pieces


def value_pieces(line: Line, layout: Layout) -> dict[RangeContent, int]:
    """The value pieces that a line needs, without their gains."""
    return {("value", name): layout.width(name) for _, source in line.writes for _, name in source}


def seat(
    lines: tuple[Line, ...], layout: Layout, frequencies: Tensor, heads: int, kv_heads: int, seed: int
) -> list[Seat]:
    """Give every line of a layer a head, in an order of groups that depends on the seed."""
    group = heads // kv_heads
    rng = random.Random(seed)
    order = rng.sample(range(kv_heads), kv_heads)
    content_dimensions = slow_dimensions(frequencies)
    members: dict[int, list[Line]] = {kv: [] for kv in order}
    for line in lines:
        kv_heads_with_room = [
            kv for kv in order if len(members[kv]) < group and _fits([*members[kv], line], layout, content_dimensions)
        ]
        if not kv_heads_with_room:
            raise WiringError(
                f"layer {line.layer} has no room for head {line.name}: {heads} heads on {kv_heads} KV heads, with"
                f" {len(content_dimensions)} slow dimensions and {layout.head_dim} values each; use more heads, or"
                " another layer"
            )
        members[kv_heads_with_room[0]].append(line)
    seats: list[Seat] = []
    for kv, group_lines in members.items():
        places = rng.sample(range(kv * group, (kv + 1) * group), group)
        keys, values = (
            _assign_dimensions(group_lines, key_pieces, layout, content_dimensions),
            _assign_dimensions(group_lines, value_pieces, layout, range(layout.head_dim)),
        )
        keys |= {("distance", line.look): list(range(FAST)) for line in group_lines if line.distances}
        seats += [Seat(line, place, keys, values) for line, place in zip(group_lines, places, strict=False)]
    return seats


def _fits(lines: list[Line], layout: Layout, content_dimensions: Sequence[int]) -> bool:
    kinds_by_distance = {line.look for line in lines if line.distances}
    keys, values = _union(lines, key_pieces, layout), _union(lines, value_pieces, layout)
    has_room = sum(keys.values()) <= len(content_dimensions) and sum(values.values()) <= layout.head_dim
    return has_room and len(kinds_by_distance) <= 1 and len({line.sharing_class for line in lines}) == 1


def _union(lines: list[Line], piece_sizes: RangeSizes, layout: Layout) -> dict[RangeContent, int]:
    union: dict[RangeContent, int] = {}
    for line in lines:
        union |= piece_sizes(line, layout)
    return union


def _assign_dimensions(
    lines: list[Line], piece_sizes: RangeSizes, layout: Layout, dimensions: Iterable[int]
) -> dict[RangeContent, list[int]]:
    free = iter(dimensions)
    sizes = _union(lines, piece_sizes, layout)
    ordered_pieces = sorted(sizes, key=lambda piece: (piece[0] != "match", piece))
    return {piece: [next(free) for _ in range(sizes[piece])] for piece in ordered_pieces}


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
class WeightScale:
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


def write_line(seat: Seat, projections: Projections, layout: Layout, scale: WeightScale) -> None:
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


def _query(seat: Seat, layout: Layout, scale: WeightScale) -> Tensor:
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


def write_decoy(head: int, free_kv: bool, projections: Projections, layout: Layout, generator: torch.Generator) -> None:
    """Write small random weights. A decoy reads anything and writes only to directions that no line reads."""
    kv = head // projections.group
    reader = torch.full((layout.hidden,), 1.0 / layout.unit)  # (hidden)
    reader[layout.spaces["constant"]] = layout.hidden**-0.5
    for target, size in (
        (projections.q[head], 0.5),
        *(((projections.k[kv], 0.5), (projections.v[kv], 0.1)) if free_kv else ()),
    ):
        target += size * torch.randn(target.shape, generator=generator) * reader
    noise = layout.spaces[NOISE]
    shape = (noise.stop - noise.start, layout.head_dim)
    projections.o[head, noise] = 0.05 * torch.randn(shape, generator=generator)
