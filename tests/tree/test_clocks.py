"""Tests never measure time: nothing that they run reads a clock, but for three tools that time runs."""

from __future__ import annotations

import ast

from tests.tree.syntax_trees import ROOT

CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
TOOLS = {
    "tests/arithmetic/portability.py",
    "tests/oracles/faults/killed_runs.py",
    "tests/oracles/mutants/random_faults.py",
}
"""When a run is killed is drawn from how long a whole one takes; the other two are commands that say how long."""


def reads_a_clock(tree: ast.Module) -> bool:
    """Whether a module uses `time.monotonic` or one of its like, or imports from `time`."""
    nodes = list(ast.walk(tree))
    attributes = [node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)]
    return any(isinstance(node, ast.ImportFrom) and node.module == "time" for node in nodes) or any(
        ast.unparse(node.value) == "time" and node.attr.removesuffix("_ns") in CLOCKS for node in attributes
    )


def test_no_test_reads_a_clock() -> None:
    paths = [path for folder in ("tests", "claims") for path in (ROOT / folder).rglob("*.py")]
    reading = {str(path.relative_to(ROOT)) for path in paths if reads_a_clock(ast.parse(path.read_text("utf-8")))}
    assert reading == {tool for tool in TOOLS if (ROOT / tool).exists()}  # in a copy of the tree they may be missing
