"""The last layer of a replay, computed for the tokens that are read above it and for no others.

Above layer `l` nothing looks at a token that is not read. Its keys and values at `l` are still needed, its query, its
share of attention, its output projection and its MLP are not. The layer stays the model's own module: the modules that
act on every token by itself get the window without its first `skip` tokens, and give zeros for those; the residual
there is worthless, and nobody reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rebinding.surgery.anatomy import Anatomy
from rebinding.surgery.batch import Batch
from rebinding.surgery.plan import ORDER
from rebinding.surgery.recording import lines
from rebinding.surgery.sites import Attention

INSIDE = range(ORDER["resid"] + 1, ORDER["logits"])
"""Sites for which a layer has to be run."""


def unread(batch: Batch, layer: int, attention: Attention) -> int:
    """How many tokens at the beginning of the window nobody reads above this layer; 0 if it has to be run in full."""
    reads, above = batch.plan.reads, layer + 1
    if above != batch.plan.stop or any(read.layer == above and ORDER[read.site] in INSIDE for read in reads):
        return 0
    inside = any(one.edit.layer == layer and one.edit.site != "resid" for one in batch.placed)
    if inside or attention == "frozen" or any(read.layer == layer and read.site != "resid" for read in reads):
        return 0
    first = min(int(lines(read.positions, batch.rows).min()) for read in reads if read.layer == above)
    return max(0, first - batch.begin)


@contextmanager
def narrowed(layer: nn.Module, anatomy: Anatomy, skip: int) -> Iterator[None]:
    """Hooks that spare the layer's modules the first `skip` tokens; gone when the block ends."""
    names = [anatomy.output, anatomy.mlp]
    if anatomy.q.module not in (anatomy.k.module, anatomy.v.module):
        names.append(anatomy.q.module)
    handles: list[Any] = []
    try:
        for module in [layer.get_submodule(name) for name in names] if skip else []:
            handles.append(module.register_forward_pre_hook(lambda _, args: (args[0][:, skip:], *args[1:])))
            handles.append(module.register_forward_hook(lambda _, args, output: _padded(output, skip)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _padded(output: Any, skip: int) -> Any:
    """A module's output (row, token, width), or the first of several, with zeros for the tokens that it was spared."""
    if isinstance(output, tuple):
        return (_padded(output[0], skip), *output[1:])
    value: Tensor = output
    return torch.cat([value.new_zeros(value.shape[0], skip, *value.shape[2:]), value], dim=1)
