"""Gradients of a score by the output z of each head at each token: one backward pass over unedited prompts.

A gradient is a first-order estimate of the effect of a small edit of z: where attention is saturated it is 0, and a
large edit has another effect. It is used to choose which edits to run, never in place of running them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rebinding.surgery.anatomy import Anatomy
from rebinding.surgery.calling import run_alone, watch_module

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.enable_grad()
def z_slopes(
    model: PreTrainedModel, anatomy: Anatomy, tokens: Tensor, score: Callable[[Tensor, Tensor], Tensor], rows: int = 4
) -> list[Tensor]:
    """d score / d z of prompts (prompt, token): by layer (prompt, head, token, head_dim), `rows` prompts at a time.

    `score` takes the last layer's output (row, token, hidden) and the numbers of its prompts: one number a row.
    """
    by_layer = []
    for prompts in torch.arange(tokens.shape[0]).split(rows):
        with run_alone(model):
            resid, added = _forward(model, anatomy, tokens[prompts])
        score(resid, prompts).sum().backward()
        by_layer.append([_of_heads(leaf, anatomy.parts[number].n_heads) for number, leaf in enumerate(added)])
    return [torch.cat(layers) for layers in zip(*by_layer, strict=True)]


def _of_heads(leaf: Tensor | None, n_heads: int) -> Tensor:
    """The gradient of an output projection's input, by head (prompt, head, token, head_dim); empty without heads."""
    if leaf is None:
        return torch.empty(0)
    assert leaf.grad is not None
    gradient: Tensor = leaf.grad.unflatten(-1, (n_heads, -1))
    return gradient.transpose(1, 2)


def _forward(model: PreTrainedModel, anatomy: Anatomy, tokens: Tensor) -> tuple[Tensor, list[Tensor | None]]:
    """The last layer's output, and zeros that were added to z, by layer (prompt, token, head x head_dim)."""
    added: list[Tensor | None] = [None] * anatomy.n_layers
    final: list[Tensor] = []

    def add_zeros(number: int, value: Tensor) -> Tensor:
        leaf = torch.zeros_like(value).requires_grad_()
        added[number] = leaf
        return value + leaf

    def keep_output(output: Any) -> None:
        final.append(anatomy.from_layer(output[0] if isinstance(output, tuple) else output))

    with ExitStack() as hooks:
        layers = anatomy.layer_modules(model)
        for parts in anatomy.parts:
            if parts.n_heads:
                watch_module(hooks, layers[parts.number], parts.output, "input", partial(add_zeros, parts.number))
        watch_module(hooks, layers[-1], "", "output", keep_output)
        embedding = next(model.get_input_embeddings().parameters())
        model.get_submodule(anatomy.decoder)(input_ids=tokens.to(embedding.device), use_cache=False)
    return final[0], added
