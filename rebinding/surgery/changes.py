"""Whether an edit changed the value at its site, or wrote what was there.

A value that is read in one run and written back in another is there again only up to rounding: the two runs multiply
matrices of other shapes. So `set` changes a value where it differs by more than rounding can. `add` is relative to what
is there in this very run, and changes a value as soon as one bit differs.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

DEVIATIONS = 64
"""Standard deviations of the rounding of a sum that do not count as a change: 5 for the largest of a million values,
times 12 for what the norms, the softmax and the products of one layer magnify it by (the most that was seen, on random
models made for it, is 5 of these 64)."""
UNITS = 8
"""Units in the last place of the model's own dtype that do not count either: a 16-bit model rounds every product, three
of them one after the other in an MLP (the most that was seen is 3.5)."""


def rounding_of_sums(hidden: int) -> float:
    """By how many units in the last place of float32 two sums over a layer's widest matrix, 4 `hidden` terms in another
    order, may differ: a random walk of sqrt(K) / 4 (`rebinding.subjects.allowance`), `DEVIATIONS` of them."""
    return DEVIATIONS * math.sqrt(4 * hidden) / 4


def changed_rows(
    before: Tensor,
    after: Tensor,
    index: tuple[Tensor, ...],
    *,
    site: str,
    mode: Literal["set", "add"],
    sums: float,
) -> Tensor:
    """Whether a site's value (row, [head,] token, width) changed at the places of an edit: (row of the edit,).

    `sums` is `rounding_of_sums` of the model.
    """
    old, new = before[index], after[index]
    if mode == "add":
        return (new != old).flatten(1).any(dim=1)
    precision = torch.finfo(old.dtype).eps
    allowed = UNITS * precision + sums * min(precision, torch.finfo(torch.float32).eps)
    size = old.abs() + _typical_size(before, site)  # (row, [head,] position, width)
    return ~((new - old).abs() <= allowed * size).flatten(1).all(dim=1)  # NaN is a change


def _typical_size(value: Tensor, site: str) -> float | Tensor:
    """The mean size of a value; 1 for scores, among which masked ones are near the largest number that there is."""
    if site == "scores":
        return 1.0
    precise = torch.promote_types(value.dtype, torch.float32)  # a sum of many numbers of 16 bits overflows
    total: Tensor = torch.linalg.vector_norm(value, ord=1, dtype=precise)  # one pass, and no copy
    return total / value.numel()
