"""A plugin for runs of the claims: `--engine ray` has workers in the same process, and says what they did."""

from __future__ import annotations

from typing import Any

import pytest

from rebinding.engines.choice import Choice
from tests.engines.nearby import Nearby

HANDS = Nearby(2)


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    """In place of actors; nothing else of the option is changed."""
    Choice._hirer = lambda self: lambda: HANDS  # type: ignore[method-assign]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    ids = [task.id for _, task in HANDS.log]
    terminalreporter.write_line(f"tasks {len(ids)}, different {len(set(ids))}, at the same time {HANDS.most}")
