"""Use of rotary embedding: fast pairs encode distances, slow pairs carry content.

A pair of frequency w turns by w radians per token. Pairs that turn by little within the longest prompt leave content
where it is. The fastest pairs hold position: with the key at angle 0 and the query turned by -w d, their scores sum to
sum_p a_p cos(w_p (distance - d)), which is largest at distance d.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LONGEST = 160
"""Tokens in the longest prompt a plant is built for: seven boxes, three swaps, the chat around them."""
STILL = 0.25
"""A pair is slow if it turns by no more than this (radians) within the longest prompt."""
FAST = 5
"""Number of fast pairs that serve position, with weights that taper off linearly."""
GAP = 0.2
"""The least loss, as a share of the peak, at any wrong distance. The nearest distance costs about 0.23."""


def slow_dimensions(frequencies: Tensor) -> list[int]:
    """Dimensions of a head that content may use, those that turn least first."""
    pairs = len(frequencies)
    slow = [pair for pair in reversed(range(pairs)) if float(frequencies[pair]) * LONGEST <= STILL]
    return [dimension for pair in slow for dimension in (pair, pair + pairs)]


def tapering() -> Tensor:
    """Weights of the fast pairs, summing to 1."""
    weights = torch.arange(FAST, 0, -1, dtype=torch.float32)  # (pair)
    return weights / weights.sum()


def gap(frequencies: Tensor, longest: int = LONGEST) -> float:
    """The share of the peak lost at the most similar wrong distance up to `longest` (an alias is a small gap)."""
    offsets = torch.arange(1, longest + 1, dtype=torch.float32)  # (offset)
    similarity = tapering() @ torch.cos(frequencies[:FAST, None] * offsets)  # (offset)
    return float(1.0 - similarity.max())


def phases(frequencies: Tensor, distance: int) -> Tensor:
    """The query entries of the fast pairs for a distance: cosines, then sines, of the tapering weights."""
    angles = -frequencies[:FAST] * distance  # (pair)
    return tapering() * torch.stack([torch.cos(angles), torch.sin(angles)])  # (cosine or sine, pair)


def position_dimensions(pairs: int) -> list[list[int]]:
    """The two dimensions of every fast pair: first halves, second halves."""
    return [list(range(FAST)), [math.floor(pairs) + pair for pair in range(FAST)]]
