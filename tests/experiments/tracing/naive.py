"""Naive residual interchange: a forward hook and a full forward pass for every cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rebinding.experiments.tracing.maps import TracedPair
from rebinding.surgery import derive
from rebinding.task.boxes import Contains, Story, Swap
from rebinding.task.prompts import Encoded, Prompt


def residuals(model: PreTrainedModel, tokens: Tensor) -> list[Tensor]:
    """The input of every decoder layer."""
    inputs: list[Tensor] = []
    hooks = [layer.register_forward_pre_hook(_keep(inputs), with_kwargs=True) for layer in get_layers(model)]
    final_logits(model, tokens)
    for hook in hooks:
        hook.remove()
    return inputs


def patched(model: PreTrainedModel, tokens: Tensor, writes: Iterable[tuple[int, int, Tensor]]) -> Tensor:
    """Logits at the last token while `writes` (layer, token, value) are written into layers' inputs."""
    hooks = [
        get_layers(model)[layer].register_forward_pre_hook(_write(token, value), with_kwargs=True)
        for layer, token, value in writes
    ]
    logits = final_logits(model, tokens)
    for hook in hooks:
        hook.remove()
    return logits


@torch.no_grad()
def final_logits(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """Logits at the last token, (prompt, vocabulary)."""
    logits: Tensor = model(input_ids=tokens, use_cache=False, logits_to_keep=1).logits[:, -1]
    return logits


def get_layers(model: PreTrainedModel) -> Any:
    """The decoder layers."""
    return derive(model).layer_modules(model)


def random_pairs(originals: Tensor, *, differing: Sequence[int], seed: int = 0) -> list[TracedPair]:
    """Pairs of token rows that differ exactly in `differing`, with candidates drawn at random."""
    dice = torch.Generator().manual_seed(seed)
    pairs = []
    for number, row in enumerate(originals):
        changed = row.clone()
        changed[list(differing)] += 1
        words = torch.randperm(40, generator=dice)[:4].tolist()
        pairs.append(TracedPair(number, plain(row), plain(changed), tuple(words[:3]), number % 3, words[3]))
    return pairs


def plain(row: Tensor) -> Encoded:
    """Tokens without a story: experiments look at tokens and roles alone."""
    story = Story((Contains("A", "egg"), Contains("B", "fan")), (Swap("B", "A"),))
    return Encoded("", tuple(row.tolist()), {"readout": len(row) - 1}, prompt=Prompt(story, "A"))


def _keep(inputs: list[Tensor]) -> Any:
    def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs.append((args[0] if args else kwargs["hidden_states"]).clone())

    return hook


def _write(token: int, value: Tensor) -> Any:
    def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        hidden = (args[0] if args else kwargs["hidden_states"]).clone()
        hidden[:, token] = value
        return ((hidden, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": hidden})

    return hook
