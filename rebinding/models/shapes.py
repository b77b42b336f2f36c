"""Random weights in the exact shape of the paper's models: for timing and memory, never for claims.

The configurations are in `rebinding/shapes`. Gemma-3-12B is its text tower alone: the vision tower never runs.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from rebinding.models.names import ALIASES

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

BLOCK = (1 << 20) - 3
"""Length of the block of random numbers that fills all matrices. Prime to their widths, so rows differ."""

STEP = 7919
"""Offset of the block from one matrix to the next, so that matrices differ."""

SPREAD = 0.02
"""Standard deviation of the weights, as these families are initialised."""


def shape_config(alias: str) -> PreTrainedConfig:
    """The configuration of one of the paper's models."""
    from transformers import AutoConfig

    text = files("rebinding").joinpath("shapes", f"{ALIASES[alias].name}.json").read_text(encoding="utf-8")
    config: PreTrainedConfig = AutoConfig.for_model(**json.loads(text))
    return config


def skeleton(config: PreTrainedConfig, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """A model whose matrices are allocated and not filled; buffers, as RoPE's frequencies, are computed."""
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    with no_init_weights(), device:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager")
    model.tie_weights()
    return cast("PreTrainedModel", model.eval().requires_grad_(False))


@torch.no_grad()
def build_shape(
    alias: str, *, dtype: torch.dtype, device: torch.device, seed: int = 0, **overrides: Any
) -> PreTrainedModel:
    """Random weights in the shape of an alias; `overrides` go to its config. Norms keep their neutral weights."""
    config = shape_config(alias)
    for name, value in overrides.items():
        setattr(config, name, value)
    model = skeleton(config, dtype, device)
    dice = torch.Generator(device).manual_seed(seed)
    block = (torch.randn(BLOCK, generator=dice, device=device) * SPREAD).to(dtype)
    for number, weight in enumerate(model.parameters()):
        if weight.ndim > 1:
            _tile(weight, block.roll(number * STEP))
    return model


def _tile(weight: nn.Parameter, block: torch.Tensor) -> None:
    """Fill a matrix with copies of a block: memory bandwidth instead of billions of random draws."""
    flat = weight.data.view(-1)
    n_full = flat.numel() // block.numel() * block.numel()
    flat[:n_full].view(-1, block.numel()).copy_(block.expand(n_full // block.numel(), -1))
    flat[n_full:].copy_(block[: flat.numel() - n_full])
