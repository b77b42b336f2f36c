"""Low-rank adapters: `scale * up @ down` is added to some of a model's matrices.

In training the addition is computed by a hook (`attached`), so that gradients reach two thin matrices and not the wide
one. For a study it is added into the weights once (`merge`): the result is a model like any other, without hooks that a
surgeon could miss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers.pytorch_utils import Conv1D

PROJECTIONS = (
    *("q_proj", "k_proj", "v_proj", "qkv_proj", "query_key_value", "c_attn"),
    *("o_proj", "out_proj", "dense", "c_proj"),
)
"""Names of the projections of an attention module, in any family."""
ATTENTION = ("self_attn", "attn", "attention")
UNCHANGED = 4 / 30
"""The share of layers, from the bottom, that keep their weights: they process words, not boxes."""


@dataclass(frozen=True)
class Pair:
    """The two thin matrices of one module."""

    down: Tensor  # (rank, in)
    up: Tensor  # (out, rank)


@dataclass(frozen=True)
class Adapter:
    """Pairs of matrices by module name. `base` is the name of the model."""

    pairs: Mapping[str, Pair]
    rank: int
    alpha: float
    base: str

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def tensors(self) -> list[Tensor]:
        return [tensor for pair in self.pairs.values() for tensor in (pair.down, pair.up)]


def new(model: nn.Module, *, rank: int, alpha: int, base: str, seed: int) -> Adapter:
    """An adapter that adds nothing yet: `down` is random, `up` is zero."""
    generator = torch.Generator().manual_seed(seed)  # on the CPU, for the same numbers on every device
    pairs = {}
    for name, module in targets(model).items():
        n_out, n_in = shape_of(module)
        bound, place = n_in**-0.5, module.weight.device
        down = ((torch.rand(rank, n_in, generator=generator) * 2 - 1) * bound).to(place)
        up = torch.zeros(n_out, rank, device=place)
        pairs[name] = Pair(down.requires_grad_(), up.requires_grad_())
    return Adapter(pairs, rank, alpha, base)


def targets(model: nn.Module) -> dict[str, nn.Linear | Conv1D]:
    """The attention's projections in all layers but the lowest."""
    projections = {
        name: module for name, module in model.named_modules() if is_matrix(module) and _is_projection(name.split("."))
    }
    if not projections:
        raise ValueError(
            f"{type(model).__name__} has no modules called {', '.join(PROJECTIONS)}, which is where an adapter goes;"
            " give a model whose attention has them, such as one of the Llama or Gemma families"
        )
    layers = sorted({layer_of(name) for name in projections})
    return {
        name: module for name, module in projections.items() if layer_of(name) >= layers[int(len(layers) * UNCHANGED)]
    }


def _is_projection(path: list[str]) -> bool:
    return len(path) > 1 and path[-2] in ATTENTION and path[-1] in PROJECTIONS


def is_matrix(module: nn.Module | None) -> TypeGuard[nn.Linear | Conv1D]:
    """Whether a module multiplies by a matrix: a linear one, or GPT-2's, which stores it transposed."""
    from transformers.pytorch_utils import Conv1D  # takes seconds; only needed with a model

    return isinstance(module, nn.Linear | Conv1D)


def shape_of(module: nn.Linear | Conv1D) -> tuple[int, int]:
    """Outputs and inputs of a matrix."""
    rows, columns = module.weight.shape
    return (rows, columns) if isinstance(module, nn.Linear) else (columns, rows)


def layer_of(name: str) -> int:
    """The number in a module's name: `model.layers.7.self_attn.q_proj` is in layer 7."""
    return next(int(part) for part in name.split(".") if part.isdecimal())


@contextmanager
def attached(model: nn.Module, adapter: Adapter) -> Iterator[None]:
    """Apply the adapter by hooks for the length of a block, so that gradients reach it."""
    with ExitStack() as stack:
        for name, pair in adapter.pairs.items():
            handle = model.get_submodule(name).register_forward_hook(_adder(pair, adapter.scale))
            stack.callback(handle.remove)
        yield


def _adder(pair: Pair, scale: float) -> Any:
    def add(_: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        return out + scale * ((args[0] @ pair.down.T) @ pair.up.T)

    return add


@torch.no_grad()
def merge(model: nn.Module, adapter: Adapter) -> None:
    """Add the adapter into the model's weights.

    The sum is computed in float64 on the CPU and rounded once, so the weights, and with them the fingerprint, do not
    depend on the device or the processor.
    """
    for name, pair in adapter.pairs.items():
        module = model.get_submodule(name)
        weight = module.get_parameter("weight")
        added = adapter.scale * (pair.up.cpu().double() @ pair.down.cpu().double())  # (out, in)
        added = added if isinstance(module, nn.Linear) else added.T
        weight.copy_((weight.cpu().double() + added).to(weight.dtype))
