"""Small random models in the shapes of the paper's models: all layers and heads, next to no width."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rebinding.models import ALIASES, build_shape
from rebinding.planted.tokenizer import build_tokenizer

NARROW: dict[str, Any] = {"hidden_size": 96, "intermediate_size": 32, "head_dim": 4}
SHARD = "400KB"
"""So that every model has several shards."""


def save_repository(alias: str, folder: Path) -> Path:
    """A random model of these layers and heads with the embedded tokenizer, its weights in several files."""
    tokenizer = build_tokenizer()
    model = build_shape(alias, dtype=torch.bfloat16, device=torch.device("cpu"), vocab_size=len(tokenizer), **NARROW)
    model.save_pretrained(folder, max_shard_size=SHARD)
    tokenizer.save_pretrained(folder)
    return folder


def hub_id(alias: str) -> str:
    """The real name of a model's repository."""
    return ALIASES[alias].hub_id
