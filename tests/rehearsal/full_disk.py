"""A plugin of pytest for the rehearsal: a disk with a megabyte free."""

from __future__ import annotations

import shutil
from typing import Any, NamedTuple

import pytest


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def nearly_full(path: object) -> Any:
    """The usage of any disk."""
    return Usage(total=1 << 30, used=(1 << 30) - 1_000_000, free=1_000_000)


def pytest_configure(config: pytest.Config) -> None:
    shutil.disk_usage = nearly_full
