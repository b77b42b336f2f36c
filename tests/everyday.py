"""Which parameters of a test run every day, and which only in `tox -e full`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def sampled(values: Iterable[Any], *everyday: Any) -> list[Any]:
    """All values; those that are not among `everyday` (the first, if none is named) are slow."""
    values = list(values)
    selected = everyday or values[:1]
    missing = [value for value in selected if value not in values]
    if missing:
        raise ValueError(f"everyday parameters {missing} are none of {values}")
    return [value if value in selected else pytest.param(value, marks=pytest.mark.slow) for value in values]


def chosen(cases: Iterable[tuple[Any, ...]], is_everyday: Callable[..., bool]) -> list[Any]:
    """All cases of several parameters; those that are not for every day are slow."""
    return [case if is_everyday(*case) else pytest.param(*case, marks=pytest.mark.slow) for case in cases]
