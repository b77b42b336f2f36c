"""Which source files of this package a module's results can depend on: those it imports, and those they import.

Imports are read from the syntax tree, so they are found wherever they stand, inside functions too, and nothing is run.
A package that is passed through counts with its `__init__.py`.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "rebinding"
ROOT = Path(__file__).parent


def code_hash(*modules: str, root: Path = ROOT) -> str:
    """sha256 over the names and contents of the files that `modules` consist of and import, directly or not."""
    found = sources(*modules, root=root)
    lines = [f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}" for name, path in sorted(found.items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def sources(*modules: str, root: Path = ROOT) -> dict[str, Path]:
    """The files of the package under `root` that `modules` need, by module name; `modules` of other packages need none.

    A name under the package that is no file is an attribute (`from rebinding.boxes import Story` looks like a module
    `rebinding.boxes.Story`) and is passed over, unless it was asked for.
    """
    for name in modules:
        if _inside(name) and _file(name, root) is None:
            raise ModuleNotFoundError(f"no file for module {name} under {root}")
    found: dict[str, Path] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        path = _file(name, root) if _inside(name) else None
        if path is not None and name not in found:
            found[name] = path
            waiting += [*_imported(name, path), *_parents(name)]
    return found


def _inside(name: str) -> bool:
    return name.split(".")[0] == PACKAGE


def _file(name: str, root: Path) -> Path | None:
    base = root.joinpath(*name.split(".")[1:])
    candidates = (base / "__init__.py", base.parent / f"{base.name}.py")
    return next((path for path in candidates if path.is_file()), None)


def _parents(name: str) -> Iterator[str]:
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _imported(name: str, path: Path) -> Iterator[str]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
