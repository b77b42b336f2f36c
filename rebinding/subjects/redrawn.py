"""A layer with its weights drawn anew, so that what starts at zero shows.

A gate, a table of positions or a branch that a model adds and has hardly trained changes its output by less than
rounding, and a comparison passes. With weights of ordinary size in their place every part of a layer contributes. Then
the layer runs over a whole prompt, and over its end alone behind recorded keys and values, as a replay runs it: both
have to give the same at every token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rebinding.subjects.allowance import Allowance, farthest_token
from rebinding.subjects.errors import ReplayDiffers
from rebinding.subjects.mixing import begin_of, run_alone
from rebinding.subjects.repeat import LACKING
from rebinding.surgery import Anatomy
from rebinding.surgery.attention import SharedPrefix, Stage
from rebinding.surgery.recording import Recording, cut_call

if TYPE_CHECKING:
    from transformers import PreTrainedModel

POOL = (1 << 20) + 7
"""Random numbers that are drawn; larger weights repeat them, at other places of every row."""


@dataclass(eq=False)
class WindowRules:
    """The rules of one layer's run: nothing is changed, keys and values are kept, `before` stands before them."""

    before: SharedPrefix | None = None
    stages: dict[Stage, Tensor] = field(default_factory=dict)

    skip = 0

    def see(self, layer: int, stage: Stage, value: Tensor) -> Tensor:
        if stage in ("keys", "values"):
            self.stages[stage] = value
        return value

    def per_query_head(self, layer: int) -> bool:
        return False

    def prefix(self, layer: int) -> SharedPrefix | None:
        return self.before


@torch.no_grad()
def check_windows(model: PreTrainedModel, anatomy: Anatomy, recording: Recording, allowance: Allowance) -> None:
    """Refuse a model one of whose layers, with other weights, computes something else over a window of tokens."""
    for number, layer in enumerate(anatomy.layer_modules(model)):
        begin = 1 + 37 * number % (begin_of(recording, number).shape[1] - 1)  # another one in every layer
        with redrawn(layer, seed=number):
            whole, window = _whole_and_window(layer, recording, number, begin)
        token, off, allowed = farthest_token(window, whole[:, begin:], allowance.one_layer)
        if not off <= allowed:
            raise ReplayDiffers(
                f"{type(model).__name__}: layer {number} ({type(layer).__name__}), with its weights drawn anew and run "
                f"from token {begin} on, is off by {off:.2g} at token {begin + token} from its run over all tokens "
                f"(allowed: {allowed:.2g}). {LACKING}"
            )


def _whole_and_window(layer: nn.Module, recording: Recording, number: int, begin: int) -> tuple[Tensor, Tensor]:
    """A layer's output (row, token, hidden) over a prompt, and over its tokens from `begin` on as a replay runs it."""
    hidden, rules = begin_of(recording, number), WindowRules()
    whole = run_alone(layer, recording, number, hidden, rules)
    keys, values = (rules.stages[stage][:, :, :begin] for stage in ("keys", "values"))
    call = cut_call(recording.calls[number], begin, hidden.shape[1], hidden.device)
    behind = WindowRules(SharedPrefix(keys, values, None, hidden.shape[0]))
    out = layer(hidden[:, begin:], **call, use_cache=False, rules=behind)
    return whole, out[0] if isinstance(out, tuple) else out


@contextmanager
def redrawn(layer: nn.Module, *, seed: int) -> Iterator[None]:
    """Random weights in a layer for the length of a block: matrices that keep sizes, vectors around 1."""
    kept = [(weight, weight.data) for weight in layer.parameters() if weight.is_floating_point()]
    pool = torch.randn(POOL, generator=torch.Generator().manual_seed(seed))
    try:
        for number, (weight, data) in enumerate(kept):
            weight.data = _drawn_like(data, pool.roll(7919 * number))
        yield
    finally:
        for weight, data in kept:
            weight.data = data


def _drawn_like(data: Tensor, pool: Tensor) -> Tensor:
    pool = pool.to(data)  # first, so that the repeating is done where the weights are
    values = pool.repeat(math.ceil(data.numel() / POOL))[: data.numel()].view(data.shape)
    return values / math.sqrt(data.shape[-1]) if data.ndim > 1 else 1 + values.clamp(-2, 2) / 4
