"""A short random prompt, and the activations of a model that runs on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rebinding.surgery.anatomy import Anatomy
from rebinding.surgery.calling import forget_lengths

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LENGTH = 100
"""The length of a real prompt; a model may fail at this length and not at a dozen tokens."""
SHORT = 12
"""The length of a short prompt, enough to distinguish sites."""
LONGEST = 256
"""A sliding window up to this length is exceeded by the probe, by two tokens."""


def draw_tokens(model: PreTrainedModel, anatomy: Anatomy) -> Tensor:
    """Random tokens (1, token), the same every time, without special tokens."""
    bound = [size + 2 for size in {part.mask.size for part in anatomy.parts} if size is not None and size <= LONGEST]
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    length = min(max([LENGTH, *bound]), longest or LONGEST)
    ordinary = sorted(set(range(anatomy.vocabulary)) - _special_ids(model.config.to_dict()))
    dice = torch.Generator().manual_seed(0)
    return torch.tensor(ordinary)[torch.randint(len(ordinary), (1, length), generator=dice)]


def exchange_tokens(model: PreTrainedModel, anatomy: Anatomy, tokens: Tensor, last: int) -> Tensor:
    """The same prompts with each of their `last` tokens replaced by another one."""
    ordinary = sorted(set(range(anatomy.vocabulary)) - _special_ids(model.config.to_dict()))
    after = {token: ordinary[(place + 1) % len(ordinary)] for place, token in enumerate(ordinary)}
    exchanged = tokens.clone()
    exchanged[:, -last:] = torch.tensor([[after[token] for token in row] for row in tokens[:, -last:].tolist()])
    return exchanged


def _special_ids(config: dict[str, Any]) -> set[int]:
    """The ids that a configuration, or one inside it, names: beginnings, ends, padding, images."""
    ids: set[int] = set()
    for key, value in config.items():
        if isinstance(value, dict):
            ids |= _special_ids(value)
        elif str(key).endswith(("_token_id", "_token_index")) and value is not None:
            ids |= set(value) if isinstance(value, list) else {int(value)}
    return ids


@dataclass(eq=False)
class Activations:
    """Inputs and outputs of modules, by (layer, name).

    Layer `n_layers` holds the output of the last layer, under `resid`.
    """

    modules: dict[tuple[int, str], Tensor] = field(default_factory=dict)
    logits: Tensor = field(default_factory=lambda: torch.empty(0))


def token_device(model: PreTrainedModel) -> torch.device:
    """The device of the embedding, where token ids go."""
    table: Any = model.get_input_embeddings()
    device: torch.device = table.weight.device
    return device


@torch.no_grad()
def forward(model: PreTrainedModel, anatomy: Anatomy, tokens: Tensor) -> Activations:
    """Run the model on its current attention, and keep its activations."""
    forget_lengths(model)
    with watch_modules(model, anatomy) as activations:
        activations.logits = model(input_ids=tokens.to(token_device(model)), use_cache=False).logits
    return activations


@contextmanager
def watch_modules(model: PreTrainedModel, anatomy: Anatomy) -> Iterator[Activations]:
    """Keep the activations while a block runs the model."""
    activations = Activations()

    def on_input(module: nn.Module, layer: int, what: str) -> None:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            value = args[0] if args else kwargs["hidden_states"]
            activations.modules[layer, what] = anatomy.from_layer(value) if what == "resid" else value

        hooks.enter_context(module.register_forward_pre_hook(hook, with_kwargs=True))

    def on_output(module: nn.Module, layer: int, what: str) -> None:
        def hook(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            value = output[0] if isinstance(output, tuple) else output
            activations.modules[layer, what] = anatomy.from_layer(value) if what == "written" else value

        hooks.enter_context(module.register_forward_hook(hook))

    with ExitStack() as hooks:
        for number, layer in enumerate(anatomy.layer_modules(model)):
            on_input(layer, number, "resid")
            on_output(layer, number, "written")
            parts = anatomy.parts[number]
            on_input(layer.get_submodule(parts.q.module if parts.n_heads else parts.mixer), number, "read")
            on_output(layer.get_submodule(parts.output or parts.mixer), number, "attended")
            for letter in ("q", "k", "v") if parts.n_heads else ():
                part = parts.projection(letter)
                if part.module:
                    (on_output if part.end == "output" else on_input)(layer.get_submodule(part.module), number, letter)
            if parts.n_heads:
                on_input(layer.get_submodule(parts.output), number, "z")
        yield activations
        activations.modules[anatomy.n_layers, "resid"] = activations.modules[anatomy.n_layers - 1, "written"]
