"""The `except` handlers in a page's code: each must catch an error and print its message.

Without this check a page that promises an error and prints nothing passes: nothing is stored, and nothing comes out.
"""

from __future__ import annotations

import ast
from typing import Any

ERRORS = "__errors__"
"""The name under which code that is run stores what its handlers have caught."""


class HandlerRecorder(ast.NodeTransformer):
    """Makes every `except` of some code store the error that it catches, under the number of its line."""

    def __init__(self) -> None:
        self.lines: list[int] = []

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.ExceptHandler:
        self.generic_visit(node)
        self.lines.append(node.lineno)
        node.name = node.name or "_"
        node.body[:0] = ast.parse(f"{ERRORS}[{node.lineno}].append({node.name})").body
        return node


def run_with_handlers(tree: ast.Module, names: dict[str, Any], filename: str) -> dict[int, list[Exception]]:
    """Run code, and return by line what each of its handlers has caught."""
    recorder = HandlerRecorder()
    tree = ast.fix_missing_locations(recorder.visit(tree))
    errors: dict[int, list[Exception]] = {line: [] for line in recorder.lines}
    names[ERRORS] = errors
    exec(compile(tree, filename, "exec"), names)
    return errors


def check_errors_shown(errors: dict[int, list[Exception]], printed: str, filename: str) -> None:
    """Every handler was reached, and what it caught was printed."""
    for line, raised_errors in errors.items():
        assert raised_errors, f"{filename}, line {line} handles an error, and nothing raised it"
        for error in raised_errors:
            assert str(error) in printed, f"{filename}, line {line} caught {error!r} and did not print its message"


def handled_names(code: str) -> list[str]:
    """The names of the errors that some code handles."""
    handlers = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ExceptHandler)]
    return [ast.unparse(node.type).rpartition(".")[2] for node in handlers if node.type is not None]
