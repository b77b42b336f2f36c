"""A tiny random model behind the public interface, and plain hooks on the same model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rebinding import Model, Prompts
from rebinding.models import LoadedModel
from rebinding.planted.tokenizer import build_tokenizer
from rebinding.surgery import derive
from tests.families.models import Family, tiny, tokens

LAYERS, HEADS, GROUP, HEAD_DIM, LENGTH = 4, 6, 3, 10, 13


def model_of(family: Family = "llama") -> Model:
    """A tiny model in float64; each call makes another object with the same weights."""
    model = tiny(family).double()
    return Model(
        LoadedModel(
            name=f"tiny {family}",
            loader=lambda: model,
            tokenizer=build_tokenizer(),
            anatomy=derive(model),
            form="raw",
            dtype="float32",
            device=torch.device("cpu"),
        )
    )


def prompts_of(model: Model, family: Family = "llama", *, first: int = 0, n: int = 2) -> Prompts:
    """Random prompts of 13 tokens with two named positions; `middle` differs from prompt to prompt."""
    ids = tokens(family, n=first + n)[first:]
    return model.prompts(
        ids,
        positions={"early": 3, "middle": [6 + number for number in range(n)]},
        answers=[[11, 50, 51], [50, 7, 8]][:n],
    )


@contextmanager
def changed_z(model: PreTrainedModel, changes: dict[int, Callable[[Tensor], Tensor]]) -> Iterator[None]:
    """Change the input of the output projection of some layers, (prompt, token, head, head_dim), by plain hooks."""

    def hook_of(change: Callable[[Tensor], Tensor]) -> Callable[[Any, Any], Any]:
        return lambda module, inputs: (change(inputs[0].unflatten(-1, (HEADS, HEAD_DIM)).clone()).flatten(-2),)

    with ExitStack() as stack:
        for layer, change in changes.items():
            module = model.get_submodule(f"model.layers.{layer}.self_attn.o_proj")
            stack.callback(module.register_forward_pre_hook(hook_of(change)).remove)
        yield


def z_of(model: PreTrainedModel, ids: Tensor) -> list[Tensor]:
    """z of every layer, (prompt, token, head, head_dim), by plain hooks."""
    seen: dict[int, Tensor] = {}

    def keep(layer: int) -> Callable[[Tensor], Tensor]:
        def change(z: Tensor) -> Tensor:
            seen[layer] = z.clone()
            return z

        return change

    with torch.no_grad(), changed_z(model, {layer: keep(layer) for layer in range(LAYERS)}):
        model(input_ids=ids)
    return [seen[layer] for layer in range(LAYERS)]


def logits_of(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """The logits at the last token (prompt, vocabulary)."""
    with torch.no_grad():
        logits: Tensor = model(input_ids=ids).logits[:, -1]
    return logits
