"""A pytest plugin that interrupts workers of pytest-xdist while they end.

pytest-xdist ends its workers when all of them have said that they are finished, and execnet sends SIGINT to one that
still runs five seconds later. Here the signal comes at once, at the same place: behind everything that pytest and its
plugins do at the end of a worker's session.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

SENT, WROTE = "SIGINT was sent to", "a report was written by"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, object, object]:
    """Say on stderr what a worker has written, and interrupt it."""
    worker = getattr(session.config, "workerinput", {}).get("workerid")  # the environment may be that of an outer run
    try:
        result = yield
    except KeyboardInterrupt:  # on a busy machine execnet was first
        print(f"{SENT} {worker}", file=sys.stderr)
        raise
    finally:
        if worker and Path(session.config.getoption("--report"), "claims.json").exists():
            print(f"{WROTE} {worker}", file=sys.stderr)
    if worker:
        print(f"{SENT} {worker}", file=sys.stderr)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)
    return result
