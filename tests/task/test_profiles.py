"""The nightly profile tries as many examples as it promises."""

from __future__ import annotations

import re
from pathlib import Path

from .conftest import PROPERTIES


def test_the_number_of_property_tests_is_known() -> None:
    folder = Path(__file__).parent
    count = sum(len(re.findall(r"^@given", path.read_text(), re.M)) for path in folder.glob("test_*.py"))
    assert count == PROPERTIES
