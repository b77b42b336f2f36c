"""The modules of this project as syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


@cache
def trees() -> dict[str, ast.Module]:
    """Every module of the package, the claims and the plugin, by its dotted name."""
    paths = [path for folder in ("rebinding", "claims", "fixtures") for path in (ROOT / folder).rglob("*.py")]
    return {_name(path): ast.parse(path.read_text("utf-8")) for path in sorted(paths)}


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(name: str) -> Iterator[str]:
    """What a module imports, wherever in it; of `from a import b` both `a` and `a.b` if that is a module."""
    for node in ast.walk(trees()[name]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name}: imports name their modules in full"
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from [module for module in modules if module in trees()] or [str(node.module)]


def imported_names(name: str) -> Iterator[tuple[str, str]]:
    """Every `from module import name` of a module."""
    for node in ast.walk(trees()[name]):
        if isinstance(node, ast.ImportFrom):
            yield from ((str(node.module), alias.name) for alias in node.names)


def has_requests(name: str) -> bool:
    """Whether a module defines classes of requests, which say their `KIND`."""
    targets = [node.target for node in ast.walk(trees()[name]) if isinstance(node, ast.AnnAssign)]
    return any(isinstance(target, ast.Name) and target.id == "KIND" for target in targets)
