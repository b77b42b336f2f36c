"""Options and profiles that every test folder shares."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

pytest_plugins = ["fixtures.plugin"]  # `fixtures` alone would be pytest's own plugin of that name


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--reference FOLDER`: further packs of reference numbers for `tests/reference`."""
    parser.addoption("--reference", action="append", default=[], metavar="FOLDER", help="a pack of reference numbers")
