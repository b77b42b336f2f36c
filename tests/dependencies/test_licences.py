"""Pinned versions: checksums, licences, and the lowest ones."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.dependencies.licences import installed, strange

ROOT = Path(__file__).parents[2]


def test_every_version_has_checksums() -> None:
    pins = [line for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines() if not line.startswith("#")]
    text = (ROOT / "constraints-hashes.txt").read_text("utf-8")
    blocks = re.split(r"\n(?=[^\s#])", text.partition("no-annotate\n")[2].rstrip())
    matches = {block.split()[0]: re.findall(r"--hash=sha256:([0-9a-f]{64})(?= |\n|$)", block) for block in blocks}
    assert sorted(name.lower().replace("_", "-") for name in pins) == sorted(matches)
    assert all(matches.values())


def test_every_licence_is_known() -> None:
    licence_by_name = {name: licence for name, _, licence in installed()}
    assert licence_by_name
    assert not {name: licence for name, licence in licence_by_name.items() if strange(licence)}


@pytest.mark.parametrize("licence", ["", "GPL-3.0-only", "MIT AND AGPL-3.0", "proprietary", "MITIGATED"])
def test_unlisted_licences_are_noticed(licence: str) -> None:
    assert strange(licence)


@pytest.mark.parametrize("licence", ["MIT", "(Apache-2.0 OR BSD-3-Clause)", "3-Clause BSD License"])
def test_permissive_licences_are_recognised(licence: str) -> None:
    assert not strange(licence)


def lowest(requirement: str) -> str:
    """A direct dependency at its lower bound."""
    parsed = Requirement(requirement)
    (bound,) = (specifier.version for specifier in parsed.specifier if specifier.operator == ">=")
    return f"{parsed.name}=={bound}"


def test_every_lower_bound_is_the_version_that_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    requirements = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    pins = (ROOT / "constraints-lowest.txt").read_text("utf-8").splitlines()
    assert [line for line in pins if not line.startswith("#")] == sorted(map(lowest, requirements))
