"""The package stands alone: nothing in it reaches the claims, the plugin or pytest, by a statement or by name."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from rebinding.cli.commands import SUBCOMMANDS
from rebinding.learned.shelf import BASES
from tests.tree.isolated_import import DOORS, FORBIDDEN
from tests.tree.syntax_trees import ROOT, trees

IMPORTERS = ("import_module", "__import__", "resolve_name", "run_module", "find_spec", "find_loader")
"""Functions that find a module by a name that is given as a string."""
BY_A_VARIABLE: Mapping[tuple[str, str], str] = {
    ("rebinding.engines.worker", "task.module"): "the module of the function that computes the request of a task",
    ("rebinding.learned.shelf", "place"): "the package that a learned model's base lies in, from `BASES`",
    ("rebinding", "f'rebinding.{_MODULES[name]}'"): "the module of a public name, from the table above the call",
    ("rebinding.cli.commands", "subcommand.module"): "a subcommand's own module, from the table above it",
}
"""Module and argument of calls whose name is no literal, and what the name can be."""


def import_alone(package: str, *folders: Path) -> dict[str, Any]:
    """What comes of importing a package where the claims, the plugin and pytest cannot be imported."""
    path = os.pathsep.join(map(str, (*folders, ROOT)))
    result = subprocess.run(
        [sys.executable, "-m", "tests.tree.isolated_import", package],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    outcome: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return outcome


def test_every_module_and_subcommand_works_without_claims_and_pytest() -> None:
    outcome = import_alone("rebinding")
    assert (outcome["attempts"], outcome["error"]) == ([], "")
    expected = {name for name in trees() if name.partition(".")[0] == "rebinding"}
    assert set(outcome["modules"]) == {name for name in expected if not name.startswith(DOORS)}
    assert set(outcome["helps"]) == {"", *SUBCOMMANDS}
    for subcommand, printed in outcome["helps"].items():
        assert printed.startswith(f"usage: rebinding {subcommand or 'COMMAND'}"), subcommand


PLANTED = {
    "a statement": "import claims",
    "a module of the plugin": "from fixtures.judging import judge",
    "by name": 'import importlib\nimportlib.import_module("claims")',
    "by another name": 'import pkgutil\npkgutil.resolve_name("claims.rows:judges")',
    "an error that is caught": "try:\n    import pytest\nexcept Exception:\n    pytest = None",
    "in a function that is called": 'def rows():\n    return __import__("_pytest.mark")\n\n\ntry:\n    rows()\n'
    "except ImportError:\n    pass",
}


@pytest.mark.parametrize("statement", PLANTED)
def test_a_violation_is_noticed(statement: str, tmp_path: Path) -> None:
    package = tmp_path / "planted_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "inner.py").write_text(PLANTED[statement])
    ((importer, name),) = import_alone(package.name, tmp_path)["attempts"]
    assert importer == "planted_package.inner"
    assert name.partition(".")[0] in FORBIDDEN


def test_a_library_may_look_for_pytest(tmp_path: Path) -> None:
    """To others it is not installed, and that is no violation of ours."""
    (tmp_path / "library.py").write_text("try:\n    import pytest\nexcept ImportError:\n    pytest = None")
    package = tmp_path / "planted_package"
    package.mkdir()
    (package / "__init__.py").write_text("import library")
    outcome = import_alone(package.name, tmp_path)
    assert (outcome["attempts"], outcome["error"]) == ([], "")


def find_import_names(tree: ast.Module) -> Iterator[ast.expr]:
    """The names with which modules are imported by a call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in IMPORTERS:
                yield from (node.args or [word.value for word in node.keywords])[:1]


def test_import_calls_use_literal_names() -> None:
    """A name that is no literal is in the list above, with what it can be."""
    violations = [
        (name, call)
        for name, tree in trees().items()
        if name.startswith("rebinding")
        for call in find_import_names(tree)
    ]
    literals = [(name, call.value) for name, call in violations if isinstance(call, ast.Constant)]
    assert not [(name, value) for name, value in literals if str(value).partition(".")[0] in (*FORBIDDEN, "tests")]
    variables = {(name, ast.unparse(call)) for name, call in violations if not isinstance(call, ast.Constant)}
    assert variables == set(BY_A_VARIABLE)
    assert all(subcommand.module.startswith("rebinding.cli.") for subcommand in SUBCOMMANDS.values())
    assert not {place for base in BASES.values() for place in base.places} & set(FORBIDDEN)


@pytest.mark.parametrize(
    "text", ['importlib.import_module("claims.rows")', "import_module(name)", '__import__(name="fixtures")']
)
def test_import_call_by_name_is_detected(text: str) -> None:
    assert len(list(find_import_names(ast.parse(text)))) == 1
