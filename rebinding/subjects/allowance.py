"""How far two computations of the same numbers may lie apart, because they sum in another order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rebinding.surgery.anatomy import Anatomy

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROOM = 128
"""How much a model may magnify its rounding. Scores far apart, norms of small numbers and short windows do; on random
models made for it, with products that are ten units in the last place off, 51 is the most that was seen
(`docs/decisions/self-check.md`)."""


def size(values: Tensor) -> float:
    """The root mean square: what rounding spreads over all entries alike, whichever of them happens to be hit most."""
    return float(values.float().square().mean().sqrt())


@dataclass(frozen=True)
class Allowance:
    """The difference that rounding may make in a model of this depth and width, computed in float32.

    The partial sums of K terms are rounded K times, up or down by chance: a random walk, by which two kernels that sum
    in different orders come to differ by about sqrt(K) / 4 units in the last place. Each of the 2 L branches of the
    residual stream (attention and MLP of every layer) adds such a difference of its own, again by chance: a walk of
    2 L steps. As a share of the size of what is compared, that makes

        ROOM * eps * sqrt(K) / 4 * sqrt(2 L)

    with K the longest sum in a layer.
    """

    depth: int
    width: int

    @classmethod
    def of_model(cls, model: PreTrainedModel, anatomy: Anatomy) -> Allowance:
        """The depth is the number of layers, the width that of the widest matrix in one of them."""
        first = anatomy.layer_modules(model)[0]
        return cls(anatomy.n_layers, max(max(weight.shape) for weight in first.parameters()))

    @property
    def one_layer(self) -> Allowance:
        """For what is computed within a layer, from the same input."""
        return Allowance(1, self.width)

    @property
    def relative(self) -> float:
        """As a share of the size of what is compared."""
        return ROOM * torch.finfo(torch.float32).eps * math.sqrt(self.width) / 4 * math.sqrt(2 * self.depth)

    def of(self, like: Tensor) -> float:
        """In the units of these numbers."""
        return self.relative * size(like)

    def near(self, a: Tensor, b: Tensor) -> bool:
        """Whether `a` may be `b`; NaN is near to nothing."""
        return a.shape == b.shape and size(a - b) <= self.of(b)


def farthest_token(got: Tensor, want: Tensor, allowance: Allowance) -> tuple[int, float, float]:
    """The token at which two computations (row, token, ...) lie farthest apart by its own measure: which one, how far
    they do, and how far they may. NaN is farthest of all."""
    off = (got.float() - want.float()).square().flatten(2).mean(dim=(0, 2)).sqrt()  # (token,)
    allowed = allowance.relative * want.float().square().flatten(2).mean(dim=(0, 2)).sqrt()  # (token,)
    token = int(torch.where(off.isnan(), torch.inf, off - allowed).argmax())
    return token, float(off[token]), float(allowed[token])
