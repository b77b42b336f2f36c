"""Planted models built once, their prompts, and runs with some heads silenced."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from rebinding.planted import Plant, build, parse
from rebinding.task.designs import DesignName, design
from rebinding.task.prompts import Encoded, Encoder

Head = tuple[int, int]


@cache
def plant(name: str) -> Plant:
    """A plant by its full name."""
    return build(parse(name))


@cache
def encoded(name: DesignName, count: int, boxes: int = 3, split: Any = None) -> tuple[Encoded, ...]:
    """The first prompts of a design as encoded for every plant."""
    stories = design(name, boxes=boxes, split=split)
    return tuple(Encoder(plant("pointer").tokenizer).encode(stories.prompt(number) for number in range(count)))


@contextmanager
def silent(model: Any, heads: Collection[Head]) -> Iterator[None]:
    """Within this context the given heads write nothing at any token."""
    size = model.config.head_dim

    def mute_layer(layer: int) -> Any:
        in_layer = [head for at, head in heads if at == layer]

        def hook(_: Any, inputs: tuple[Tensor]) -> tuple[Tensor]:
            z = inputs[0].clone()  # (prompt, token, head x head_dim)
            for head in in_layer:
                z[..., head * size : (head + 1) * size] = 0.0
            return (z,)

        return hook

    layers = {layer for layer, _ in heads}
    handles = [model.model.layers[at].self_attn.o_proj.register_forward_pre_hook(mute_layer(at)) for at in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def logits(loaded_model: Plant, prompts: Sequence[Encoded], excluded: Collection[Head] = ()) -> Tensor:
    """Logits at the readout (prompt, vocabulary), with some heads silent."""
    ids = torch.tensor([prompt.ids for prompt in prompts])  # (prompt, token)
    with silent(loaded_model.model, excluded):
        rows: Tensor = loaded_model.model(ids, use_cache=False, logits_to_keep=1).logits[:, -1]
    return rows


def margins(loaded_model: Plant, prompts: Sequence[Encoded], excluded: Collection[Head] = ()) -> Tensor:
    """The answer's logit less the largest among the story's other objects, for every prompt."""
    tokens = Encoder(loaded_model.tokenizer)
    values = []
    for prompt, row in zip(prompts, logits(loaded_model, prompts, excluded), strict=True):
        answer = tokens.answer_token(prompt.prompt.answer)
        rivals = [token for token in tokens.answer_tokens(prompt.prompt.story.objects) if token != answer]
        values.append(row[answer] - row[rivals].max())
    return torch.stack(values)
