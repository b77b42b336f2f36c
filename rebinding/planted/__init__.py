"""Planted models: their mechanism is known because their weights are written by hand."""

from rebinding.planted.compiler.architectures import ARCHITECTURES
from rebinding.planted.language.template import TemplateError
from rebinding.planted.language.wiring import WiringError
from rebinding.planted.plant import MECHANISMS, Declared, Plant, Specification, build, parse
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
