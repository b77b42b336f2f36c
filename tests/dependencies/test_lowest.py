"""constraints-lowest.txt, with which `tox -e lowest` runs, is what pyproject.toml says."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


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
