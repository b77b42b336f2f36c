"""The slice of the residual stream of each space, and expressions as matrices that read or write it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rebinding.planted.language.features import ALIASES, BASE, CONSTANT
from rebinding.planted.language.wiring import Expression, WiringError, expression

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
        for gain, name in parts:
            dimensions = self.directions(name)
            matrix[range(len(dimensions)), dimensions] += gain
        return matrix

    def kinds(self, expr: Expression | str) -> Tensor:
        """The vector that reads how much of an expression a token has, summed over directions."""
        parts = expression(expr) if isinstance(expr, str) else expr
        total = torch.zeros(self.hidden)  # (hidden)
        for gain, name in parts:
            total[self.directions(name)] += gain
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
