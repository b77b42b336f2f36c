"""Tests never measure time: nothing that they run reads a clock, but for three tools that time runs."""

from __future__ import annotations

import ast

from tests.tree.syntax_trees import ROOT

CLOCKS = {"time", "timeit", "datetime"}
"""Modules that read a clock, under whatever name they are imported."""
TOOLS = {
    "tests/arithmetic/portability.py",
    "tests/oracles/faults/killed_runs.py",
    "tests/oracles/mutants/random_faults.py",
}
"""When a run is killed is drawn from how long a whole one takes; the other two are commands that say how long."""


def reads_a_clock(tree: ast.Module) -> bool:
    """Whether a module imports one that reads a clock, or something from it."""
    nodes = list(ast.walk(tree))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    return bool(names & CLOCKS)


def test_no_test_reads_a_clock() -> None:
    paths = [path for folder in ("tests", "claims") for path in (ROOT / folder).rglob("*.py")]
    reading = {str(path.relative_to(ROOT)) for path in paths if reads_a_clock(ast.parse(path.read_text("utf-8")))}
    assert reading == {tool for tool in TOOLS if (ROOT / tool).exists()}  # in a copy of the tree they may be missing
