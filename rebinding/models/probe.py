"""A short random prompt, and the activations of a model that runs on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rebinding.surgery.anatomy import Anatomy, End
from rebinding.surgery.calling import forget_lengths, watch_module

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
    ordinary = _ordinary_ids(model, anatomy)
    dice = torch.Generator().manual_seed(0)
    return torch.tensor(ordinary)[torch.randint(len(ordinary), (1, length), generator=dice)]


def exchange_tokens(model: PreTrainedModel, anatomy: Anatomy, tokens: Tensor, last: int) -> Tensor:
    """The same prompts with each of their `last` tokens replaced by another one."""
    ordinary = _ordinary_ids(model, anatomy)
    after = {token: ordinary[(place + 1) % len(ordinary)] for place, token in enumerate(ordinary)}
    exchanged = tokens.clone()
    exchanged[:, -last:] = torch.tensor([[after[token] for token in row] for row in tokens[:, -last:].tolist()])
    return exchanged


def _ordinary_ids(model: PreTrainedModel, anatomy: Anatomy) -> list[int]:
    return sorted(set(range(anatomy.vocabulary)) - _special_ids(model.config.to_dict()))


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

    def keep(name: str, number: int, layer: nn.Module, path: str, end: End) -> None:
        def see(value: Any) -> None:
            value = value[0] if isinstance(value, tuple) else value
            activations.modules[number, name] = anatomy.from_layer(value) if name in ("resid", "written") else value

        watch_module(hooks, layer, path, end, see)

    with ExitStack() as hooks:
        for number, layer in enumerate(anatomy.layer_modules(model)):
            parts = anatomy.parts[number]
            keep("resid", number, layer, "", "input")
            keep("written", number, layer, "", "output")
            keep("read", number, layer, parts.q.module if parts.n_heads else parts.mixer, "input")
            keep("attended", number, layer, parts.output or parts.mixer, "output")
            for letter in ("q", "k", "v") if parts.n_heads else ():
                if parts.projection(letter).module:
                    keep(letter, number, layer, parts.projection(letter).module, parts.projection(letter).end)
            if parts.n_heads:
                keep("z", number, layer, parts.output, "input")
        yield activations
        activations.modules[anatomy.n_layers, "resid"] = activations.modules[anatomy.n_layers - 1, "written"]
