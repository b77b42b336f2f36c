"""Fuzzing runs as many cases as promised, and accepts only errors of the package."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from rebinding.study.model_spec import parse_model
from tests.oracles.faults.fuzz import NIGHTLY_TOTAL, PROPERTIES, SHARES, cases, refused


def test_the_properties_are_counted() -> None:
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_fuzz_*.py"))
    assert Counter(re.findall(r'^@cases\("(\w+)"\)\n@given', text, re.M)) == PROPERTIES


def test_a_million_a_night(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPOTHESIS_PROFILE", "nightly")
    n_cases = sum(cases(sort).max_examples * PROPERTIES[sort] for sort in SHARES)
    assert NIGHTLY_TOTAL <= n_cases < 1.001 * NIGHTLY_TOTAL


def test_only_package_errors_count_as_refusals() -> None:
    assert refused(lambda: parse_model("planted:pointer")) is None
    assert "unknown model" in str(refused(lambda: parse_model("pointer")))
    for attempt in (lambda: int("x"), lambda: {}["x"], lambda: Path("/nowhere").read_text()):
        with pytest.raises((ValueError, LookupError, OSError)):
            refused(attempt)
