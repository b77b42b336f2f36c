"""The model under study: loading by name, its tokenizer, its self-check."""

from rebinding.models.errors import ModelError
from rebinding.models.loaded_model import LoadedModel, load
from rebinding.models.names import ALIASES, Alias, Origin, origin
from rebinding.models.selfcheck import check
from rebinding.models.shapes import build_shape, shape_config

__all__ = [
    "ALIASES",
    "Alias",
    "LoadedModel",
    "ModelError",
    "Origin",
    "build_shape",
    "check",
    "load",
    "origin",
    "shape_config",
]
