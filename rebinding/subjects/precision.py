"""A model of 16 bits, computed in float32: that is where exactness can be told from rounding.

In bfloat16 logits of 30 are an eighth apart, and two ways of summing that are both right may differ by several eighths:
a comparison there would have to let pass what claims are judged by. The same weights in float32 give the same function
without that noise. What differs in 16 bits and not here is rounding; what differs here as well is a mistake.

Layers are raised one at a time, while they run, so the model needs room for one layer more and no second copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rebinding.surgery.anatomy import Anatomy

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WORDS = 4096
"""Tokens of the vocabulary that speak for all: a head of 256,000 in float32 would be the largest tensor of the load."""


@contextmanager
def raised(module: nn.Module, words: int | None = None) -> Iterator[None]:
    """The 16-bit weights of a module in float32 for the length of a block; only their first `words` rows, if given."""
    kept = [(weight, weight.data) for weight in module.parameters() if _is_short(weight)]
    try:
        for weight, data in kept:
            weight.data = data[:words].float()
        yield
    finally:
        for weight, data in kept:
            weight.data = data


@contextmanager
def in_float32(model: PreTrainedModel, anatomy: Anatomy) -> Iterator[None]:
    """Every layer, the final norm and `WORDS` rows of the head compute in float32 while they run.

    A model that is in float32 already is left as it is.
    """
    if not any(map(_is_short, model.parameters())):
        yield
        return
    parts: list[tuple[nn.Module, int | None]] = [(layer, None) for layer in anatomy.layer_modules(model)]
    parts += [(model.get_submodule(anatomy.final_norm), None), (model.get_submodule(anatomy.head), WORDS)]
    with ExitStack() as stack:
        for part, words in parts:
            stack.enter_context(_raised_while_it_runs(part, words))
        yield


@contextmanager
def _raised_while_it_runs(module: nn.Module, words: int | None) -> Iterator[None]:
    running = ExitStack()

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        running.enter_context(raised(module, words))
        return tuple(map(_float, args)), {key: _float(value) for key, value in kwargs.items()}

    handles = [
        module.register_forward_pre_hook(before, with_kwargs=True),
        module.register_forward_hook(lambda *_: running.close()),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        running.close()


def _is_short(weight: Tensor) -> bool:
    return weight.is_floating_point() and weight.element_size() < torch.finfo(torch.float32).bits // 8


def _float(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_float, value))
    return value.float() if isinstance(value, Tensor) and _is_short(value) else value
