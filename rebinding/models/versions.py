"""The versions of torch and transformers with which the surgeon was tested; others load with a warning.

The surgeon reads internals of both. The self-check at every load holds any version; those of `TESTED` were run
(`tox -e transformers-522,transformers-524`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from types import MappingProxyType

TESTED: Mapping[str, tuple[str, str]] = MappingProxyType({"torch": ("2.13", "2.13"), "transformers": ("5.22", "5.24")})
"""The first and the last minor version of each."""


def untested(installed: Mapping[str, str]) -> list[str]:
    """A sentence for each package whose minor version is outside of what was tested."""
    sentences = []
    for name, (first, last) in TESTED.items():
        if not _minor(first) <= _minor(installed[name]) <= _minor(last):
            span = first if first == last else f"{first} to {last}"
            sentences.append(f"{name} {installed[name]}, tested: {span}")
    return sentences


def _minor(text: str) -> tuple[int, ...]:
    """(5, 24) of 5.24.0.dev0."""
    return tuple(int(part) for part in text.split(".")[:2])


@cache
def warn_of_untested() -> None:
    """Warn once in a process."""
    if sentences := untested({name: version(name) for name in TESTED}):
        warnings.warn(
            f"{'; '.join(sentences)}. The self-check of every load decides whether a model runs exactly; for the"
            " numbers of the claims install a tested version",
            stacklevel=3,
        )
