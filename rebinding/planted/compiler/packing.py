"""The head of each line, and the use of the dimensions of its KV head.

Heads of a KV group share keys and values. A KV head therefore holds every key piece and every value piece that its
lines need, each once; a query puts weight only on the pieces that its line uses, and the output projection takes only
the values that its line carries. Two lines fit into one group if their pieces fit; at most one token kind is found by
distance, because all heads of a group share the fast rotary pairs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from rebinding.planted.compiler.layout import Layout
from rebinding.planted.language.rope import FAST, slow_dimensions
from rebinding.planted.language.wiring import Line, WiringError

Piece: TypeAlias = tuple[str, str]
"""The content of a range of key or value dimensions: a kind of use, and the text of the expression it reads."""
PieceSizes: TypeAlias = Callable[[Line, Layout], dict[Piece, int]]


@dataclass(frozen=True)
class Seat:
    """A line with its head and the dimensions of the pieces of its KV head."""

    line: Line
    head: int
    keys: dict[Piece, list[int]]
    values: dict[Piece, list[int]]


def key_pieces(line: Line, layout: Layout) -> dict[Piece, int]:
    """The key pieces that a line needs, with their sizes; distances use the fast pairs instead."""
    pieces: dict[Piece, int] = {}
    for _, key in line.matches:
        pieces["match", layout.text(key)] = len(layout.vector(key))
    pieces["sink", ""] = 1
    pieces["gate", line.look] = 1
    if line.prefer:
        pieces["prefer", line.prefer] = 1
    return pieces


def value_pieces(line: Line, layout: Layout) -> dict[Piece, int]:
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


def _union(lines: list[Line], piece_sizes: PieceSizes, layout: Layout) -> dict[Piece, int]:
    union: dict[Piece, int] = {}
    for line in lines:
        union |= piece_sizes(line, layout)
    return union


def _assign_dimensions(
    lines: list[Line], piece_sizes: PieceSizes, layout: Layout, dimensions: Iterable[int]
) -> dict[Piece, list[int]]:
    free = iter(dimensions)
    sizes = _union(lines, piece_sizes, layout)
    ordered_pieces = sorted(sizes, key=lambda piece: (piece[0] != "match", piece))
    return {piece: [next(free) for _ in range(sizes[piece])] for piece in ordered_pieces}
