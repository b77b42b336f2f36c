"""The names that the package exports: documented, imported late, and the same in every list."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rebinding
from rebinding.api.judging import JudgeError

ROOT = Path(__file__).parents[2]
LOADED = "import sys, rebinding; dir(rebinding); print(sorted({'torch', 'pandas', 'rebinding.api'} & set(sys.modules)))"


def test_every_name_has_a_docstring_and_a_place_in_the_page() -> None:
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    headings = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^## .*$", page, re.MULTILINE))))
    assert headings == set(rebinding.__all__)
    for name in rebinding.__all__:
        value = getattr(rebinding, name)
        assert value.__name__ == name
        assert inspect.getdoc(value), name
        public = [(own, part) for own, part in vars(value).items() if not own.startswith("_") and callable(part)]
        assert all(inspect.getdoc(part) for _, part in public), name
        assert name in page


def test_the_lists_of_names_agree() -> None:
    """Those that a type checker sees, those that are imported late, and `__all__`."""
    source = (ROOT / "rebinding" / "__init__.py").read_text("utf-8")
    declared = re.findall(r"^    from rebinding\.([\w.]+) import (\w+) as \2$", source, re.MULTILINE)
    assert {name: module for module, name in declared} == rebinding._MODULES
    assert sorted(rebinding._MODULES) == sorted(rebinding.__all__)


def test_importing_the_package_imports_nothing_large() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_an_unknown_name_lists_the_names() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'patch'; its names are Circuit, CircuitError, Edit"):
        rebinding.patch  # noqa: B018


def test_judge_says_why_nothing_was_judged(tmp_path: Path) -> None:
    with pytest.raises(JudgeError, match=r"did you mean .*pointer"):
        rebinding.judge("planted:pointr", options=["--no-store"])
    with pytest.raises(ValueError, match="no model given"):
        rebinding.judge()
