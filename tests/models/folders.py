"""Model folders as save_pretrained writes them, and ways to damage them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from rebinding.planted.tokenizer import build_tokenizer
from tests.families.models import Family, tiny

ROWS = len(build_tokenizer())


def save(model: PreTrainedModel, folder: Path, **options: Any) -> Path:
    """A model and the embedded tokenizer in a folder."""
    model.save_pretrained(folder, **options)
    build_tokenizer().save_pretrained(folder)
    return folder


def save_tiny(folder: Path, family: Family = "llama", **overrides: Any) -> Path:
    """A tiny random model of a family in a folder, with a row for every token of the tokenizer."""
    return save(tiny(family, **{"vocab_size": ROWS, **overrides}), folder)


def change_config(folder: Path, name: str = "config.json", **changes: Any) -> None:
    """Write other values into a JSON file of a folder."""
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def change_weights(folder: Path, **changes: Any) -> None:
    """Replace tensors of a folder by name, with `__` for a dot; drop those that are None."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name, value in changes.items():
        key = name.replace("__", ".")
        tensors[key] = value
        if value is None:
            del tensors[key]
    save_file(tensors, path, metadata={"format": "pt"})
