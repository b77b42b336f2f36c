"""Models whose mechanism is known because we wrote the weights."""

from rebinding.planted.architectures import ARCHITECTURES
from rebinding.planted.plant import MECHANISMS, Declared, Plant, Specification, build, parse
from rebinding.planted.template import TemplateError
from rebinding.planted.truth import Truth
from rebinding.planted.variants import VARIANTS
from rebinding.planted.wiring import WiringError

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
