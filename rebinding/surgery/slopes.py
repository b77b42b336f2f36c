"""Gradients of a score by the output z of each head at each token: one backward pass over unedited prompts.

A gradient is a first-order estimate of the effect of a small edit of z: where attention is saturated it is 0, and a
large edit has another effect. It is used to choose which edits to run, never in place of running them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rebinding.surgery.anatomy import Anatomy

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.enable_grad()
def z_slopes(
    model: PreTrainedModel, anatomy: Anatomy, tokens: Tensor, score: Callable[[Tensor, Tensor], Tensor], rows: int = 4
) -> list[Tensor]:
    """d score / d z of prompts (prompt, token): by layer (prompt, head, token, head_dim), `rows` prompts at a time.

    `score` takes the input of the final norm (row, token, hidden) and the numbers of its prompts: one number a row.
    """
    parts = []
    for prompts in torch.arange(tokens.shape[0]).split(rows):
        resid, added = _forward(model, anatomy, tokens[prompts])
        score(resid, prompts).sum().backward()
        parts.append([leaf.grad.unflatten(-1, (anatomy.n_heads, -1)).transpose(1, 2) for leaf in added])
    return [torch.cat(layers) for layers in zip(*parts, strict=True)]


def _forward(model: PreTrainedModel, anatomy: Anatomy, tokens: Tensor) -> tuple[Tensor, list[Any]]:
    """The input of the final norm, and zeros that were added to z, by layer (prompt, token, head x head_dim)."""
    added: list[Any] = []
    final: list[Tensor] = []

    def add_zeros(module: Any, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        added.append(torch.zeros_like(args[0]).requires_grad_())
        return (args[0] + added[-1], *args[1:])

    with ExitStack() as hooks:
        for layer in anatomy.layer_modules(model):
            hooks.callback(layer.get_submodule(anatomy.output).register_forward_pre_hook(add_zeros).remove)
        norm = model.get_submodule(anatomy.final_norm)
        hooks.callback(norm.register_forward_pre_hook(lambda _, args: final.append(args[0])).remove)
        embedding = next(model.get_input_embeddings().parameters())
        model.get_submodule(anatomy.decoder)(input_ids=tokens.to(embedding.device), use_cache=False)
    return final[0], added
