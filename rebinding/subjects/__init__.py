"""The model under study: loading by name, its tokenizer, its self-check."""

from rebinding.subjects.errors import SubjectError
from rebinding.subjects.names import ALIASES, Alias, Origin, origin
from rebinding.subjects.selfcheck import check_subject
from rebinding.subjects.shapes import build_shape, shape_config
from rebinding.subjects.subject import Subject, load

__all__ = [
    "ALIASES",
    "Alias",
    "Origin",
    "Subject",
    "SubjectError",
    "build_shape",
    "check_subject",
    "load",
    "origin",
    "shape_config",
]
