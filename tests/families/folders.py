"""Model folders of the families, with the words of the task and windows that reach over a whole prompt."""

from __future__ import annotations

from pathlib import Path

from tests.families.models import RandomModel
from tests.models.folders import ROWS, save

WHOLE = 512
"""Tokens of windows, chunks and positions; a prompt has about eighty."""


def save_family(model: RandomModel, folder: Path) -> Path:
    """The model in a folder, with the tokenizer of the planted models."""
    sizes = dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), ROWS)
    lengths = ("max_position_embeddings", "n_positions", "sliding_window", "attention_chunk_size")
    return save(model.build(**sizes, **dict.fromkeys(lengths, WHOLE)), folder)
