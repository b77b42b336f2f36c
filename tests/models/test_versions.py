"""Versions of torch and transformers: those of the pins are tested, others are named in a warning and not refused."""

from __future__ import annotations

import re
import tomllib
import warnings
from pathlib import Path

import pytest

import rebinding
from rebinding.models import versions
from rebinding.models.versions import TESTED, untested, warn_of_untested

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("torch", "transformers", "sentences"),
    [
        ("2.13.0+cpu", "5.22.2", []),
        ("2.13.1", "5.24.0", []),
        ("2.13.0", "5.9.0", ["transformers 5.9.0, tested: 5.22 to 5.24"]),
        ("2.13.0", "5.25.0.dev0", ["transformers 5.25.0.dev0, tested: 5.22 to 5.24"]),
        ("2.2.0", "6.0.0", ["torch 2.2.0, tested: 2.13", "transformers 6.0.0, tested: 5.22 to 5.24"]),
    ],
)
def test_a_version_outside_of_the_tested_ones_is_named(torch: str, transformers: str, sentences: list[str]) -> None:
    """Minor versions are compared as numbers: 5.9 is before 5.22."""
    assert untested({"torch": torch, "transformers": transformers}) == sentences


def test_an_untested_version_loads_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "version", lambda name: {"torch": "2.13.0", "transformers": "5.99.0"}[name])
    warn_of_untested.cache_clear()
    with pytest.warns(UserWarning, match=r"transformers 5\.99\.0, tested: 5\.22 to 5\.24"):
        rebinding.load("planted:pointer")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rebinding.load("planted:pointer")
    warn_of_untested.cache_clear()


def test_the_installed_and_the_pinned_versions_are_tested() -> None:
    """The everyday pins, the lower bounds, and the environments of tox."""
    pins = dict(
        re.findall(r"^(torch|transformers)==(\S+)$", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    )
    assert untested(pins) == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    bounds = dict(re.findall(r"(torch|transformers)>=([\d.]+)", " ".join(project["dependencies"])))
    assert bounds == {name: first for name, (first, _) in TESTED.items()}
    first, last = (int(text.split(".")[1]) for text in TESTED["transformers"])
    environments = re.findall(r"transformers==5\.(\d+)\.\*", (ROOT / "tox.ini").read_text("utf-8"))
    pinned = int(pins["transformers"].split(".")[1])
    assert {*map(int, environments), pinned} == {*range(first, last + 1)}
