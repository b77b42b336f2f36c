"""The dtype in which a model is loaded where none is given: the same for the API, the commands and the claims."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rebinding.models.devices import DTYPES, Dtype
from rebinding.models.errors import ModelError
from rebinding.models.names import Origin, of_base
from rebinding.paper.numbers import checkpoint


def default_dtype(origin: Origin) -> Dtype:
    """The published one for the paper's models, bfloat16 for others on the Hub, a folder's saved one, an adapter's
    base's; float32 for plants, for learned models, which were trained so, and for GGUF files, as they come out of their
    quantisation."""
    match origin.kind:
        case "planted" | "learned" | "gguf":
            return "float32"
        case "adapter":
            try:
                return default_dtype(of_base(origin))
            except ModelError:
                return "float32"  # loading raises the error
        case "folder" if not fits_the_paper(origin):
            config = read_config(origin)
            saved = config.get("dtype") or config.get("torch_dtype")
            return saved if saved in DTYPES else "float32"
    return origin.alias.dtype if origin.alias else "bfloat16"


def fits_the_paper(origin: Origin) -> bool:
    """Whether a model that stands for one of the paper has its layers and heads (taken as true of models on the
    Hub)."""
    if origin.alias is None or origin.kind == "shape":
        return False
    if origin.kind != "folder":
        return True
    paper, config = checkpoint(origin.alias.name), read_config(origin)
    text = config.get("text_config", config)
    return isinstance(text, dict) and (text.get("num_hidden_layers"), text.get("num_attention_heads")) == (
        paper.layers,
        paper.heads,
    )


def read_config(origin: Origin) -> dict[str, Any]:
    """The folder's configuration; empty if it cannot be read (loading the model raises the error)."""
    try:
        config = json.loads((Path(origin.target) / "config.json").read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}
