"""How a test says which claims it judges, and which claims are judged by all of them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from rebinding.paper.claim import Claim


def judges(*claims: Claim) -> pytest.MarkDecorator:
    """The rows of the list of claims that a test stands for; the test gets them one by one, as `claim`."""
    return pytest.mark.parametrize("claim", claims, ids=[claim.id for claim in claims])


def every() -> Iterator[Claim]:
    """The rows of all tests of this folder."""
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        module = importlib.import_module(f"claims.{path.stem}")
        for test in vars(module).values():
            for mark in getattr(test, "pytestmark", ()):
                if mark.name == "parametrize" and mark.args[0] == "claim":
                    yield from mark.args[1]
