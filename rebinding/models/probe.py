"""A short random prompt, and everything that passes through a model while it reads it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rebinding.surgery.anatomy import Anatomy

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LENGTH = 100
"""Tokens of a real prompt: what is right at a dozen may be wrong here."""
SHORT = 12
"""Tokens of its beginning, enough where only sites are told apart."""
LONGEST = 256
"""A sliding window up to this long is made to bind: the probe is two tokens longer than it."""


def draw_tokens(model: PreTrainedModel, anatomy: Anatomy) -> Tensor:
    """Random tokens (1, token), the same ones every time, without those that stand for images or begin a text."""
    bound = [window + 2 for window in anatomy.windows if window is not None and window <= LONGEST]
    known = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    length = min(max([LENGTH, *bound]), known or LONGEST)
    ordinary = sorted(set(range(anatomy.vocabulary)) - _special_ids(model.config.to_dict()))
    dice = torch.Generator().manual_seed(0)
    return torch.tensor(ordinary)[torch.randint(len(ordinary), (1, length), generator=dice)]


def other_tokens(model: PreTrainedModel, anatomy: Anatomy, tokens: Tensor, last: int) -> Tensor:
    """The same prompts with each of their `last` tokens exchanged for another one."""
    ordinary = sorted(set(range(anatomy.vocabulary)) - _special_ids(model.config.to_dict()))
    after = {token: ordinary[(place + 1) % len(ordinary)] for place, token in enumerate(ordinary)}
    changed = tokens.clone()
    changed[:, -last:] = torch.tensor([[after[token] for token in row] for row in tokens[:, -last:].tolist()])
    return changed


def _special_ids(config: dict[str, Any]) -> set[int]:
    """The ids that a configuration, or one inside it, names: beginnings, ends, padding, images."""
    found: set[int] = set()
    for key, value in config.items():
        if isinstance(value, dict):
            found |= _special_ids(value)
        elif str(key).endswith(("_token_id", "_token_index")) and value is not None:
            found |= set(value) if isinstance(value, list) else {int(value)}
    return found


@dataclass(eq=False)
class Watched:
    """What passed: inputs and outputs of modules by (layer, what).

    Layer `n_layers` holds the input of the final norm, under `resid`.
    """

    modules: dict[tuple[int, str], Tensor] = field(default_factory=dict)
    logits: Tensor = field(default_factory=lambda: torch.empty(0))


def token_device(model: PreTrainedModel) -> torch.device:
    """Where token ids go: to the embedding."""
    table: Any = model.get_input_embeddings()
    device: torch.device = table.weight.device
    return device


@torch.no_grad()
def forward(model: PreTrainedModel, anatomy: Anatomy, tokens: Tensor) -> Watched:
    """Run the model on whatever attention it has, and keep what passes."""
    with watched(model, anatomy) as seen:
        seen.logits = model(input_ids=tokens.to(token_device(model)), use_cache=False).logits
    return seen


@contextmanager
def watched(model: PreTrainedModel, anatomy: Anatomy) -> Iterator[Watched]:
    """Keep what passes while a block runs the model."""
    seen = Watched()

    def on_input(module: nn.Module, layer: int, what: str) -> None:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            seen.modules[layer, what] = args[0] if args else kwargs["hidden_states"]

        hooks.enter_context(module.register_forward_pre_hook(hook, with_kwargs=True))

    def on_output(module: nn.Module, layer: int, what: str) -> None:
        def hook(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            seen.modules[layer, what] = output[0] if isinstance(output, tuple) else output

        hooks.enter_context(module.register_forward_hook(hook))

    with ExitStack() as hooks:
        for number, layer in enumerate(anatomy.layer_modules(model)):
            on_input(layer, number, "resid")
            on_output(layer, number, "written")
            on_input(layer.get_submodule(anatomy.q.module), number, "read")
            for letter, part in (("q", anatomy.q), ("k", anatomy.k), ("v", anatomy.v)):
                on_output(layer.get_submodule(part.module), number, letter)
            on_input(layer.get_submodule(anatomy.output), number, "z")
            on_output(layer.get_submodule(anatomy.output), number, "attended")
        on_input(model.get_submodule(anatomy.final_norm), anatomy.n_layers, "resid")
        yield seen
