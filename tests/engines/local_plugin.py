"""A pytest plugin for runs of the claims: `--engine ray` uses workers in the same process, and prints their counts."""

from __future__ import annotations

from typing import Any

import pytest

from rebinding.engines.choice import Choice
from tests.engines.local_pool import LocalPool

POOL = LocalPool(2)


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    """Use local workers instead of actors; the option stays the same otherwise."""
    Choice._pool_factory = lambda self: lambda: POOL  # type: ignore[method-assign]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    ids = [task.id for _, task in POOL.log]
    terminalreporter.write_line(f"tasks {len(ids)}, different {len(set(ids))}, at the same time {POOL.max_running}")
