"""Planted models: their mechanism is known because their weights are written by hand."""

from rebinding.planted.compiler import ARCHITECTURES
from rebinding.planted.language import TemplateError, WiringError
from rebinding.planted.mechanisms import MECHANISMS
from rebinding.planted.plant import Declared, Plant, Specification, build, parse
from rebinding.planted.truth import Truth
from rebinding.planted.variants import VARIANTS

__all__ = [
    "ARCHITECTURES",
    "MECHANISMS",
    "VARIANTS",
    "Declared",
    "Plant",
    "Specification",
    "TemplateError",
    "Truth",
    "WiringError",
    "build",
    "parse",
]
