"""The source files of this package that a module's results can depend on: all that it imports, directly or not.

Imports are read from the syntax tree, inside functions too, and no code runs. Imports for a type checker alone
(`if TYPE_CHECKING:`) do not count. A parent package counts with its `__init__.py`.
"""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = "rebinding"
ROOT = Path(__file__).parents[1]
MAKERS = ("rebinding.planted",)
"""Packages that build models. A model's weights and tokenizer identify it, so the source that built it is left out."""


def code_hash(*modules: str, root: Path = ROOT) -> str:
    """sha256 over the names and contents of `modules` and of all files that they import, directly or not."""
    paths = sources(*modules, root=root)
    lines = [f"{name} {_read(name, path, _state(path))[0]}" for name, path in sorted(paths.items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def sources(*modules: str, root: Path = ROOT) -> dict[str, Path]:
    """The files of the package under `root` that `modules` need, by module name; `modules` of other packages need none.

    A name under the package that is no file is an attribute (`from rebinding.task.boxes import Story` looks like a
    module `rebinding.task.boxes.Story`) and is skipped, unless it is in `modules`. So are the packages in `MAKERS`.
    """
    for name in modules:
        if _inside(name) and _file(name, root) is None:
            raise ModuleNotFoundError(f"no file for module {name} under {root}")
    paths: dict[str, Path] = {}
    queue, seen = list(modules), set(modules)
    while queue:
        name = queue.pop()
        skip = name not in modules and name.startswith(MAKERS)
        path = _file(name, root) if _inside(name) and not skip else None
        if path is not None:
            paths[name] = path
            new_names = {*_read(name, path, _state(path))[1], *_parents(name)} - seen
            queue += new_names
            seen |= new_names
    return paths


def modules_of(package: str, root: Path = ROOT) -> list[str]:
    """The names of all modules of one of our packages."""
    folder = root.joinpath(*package.split(".")[1:])
    paths = sorted(path.relative_to(root).with_suffix("") for path in folder.rglob("*.py"))
    return [".".join((PACKAGE, *path.parts)).removesuffix(".__init__") for path in paths]


def _inside(name: str) -> bool:
    return name.split(".")[0] == PACKAGE


@cache
def _file(name: str, root: Path) -> Path | None:
    """The path of a module, cached: its content may change while a process runs, its path does not."""
    base = root.joinpath(*name.split(".")[1:])
    candidates = (base / "__init__.py", base.parent / f"{base.name}.py")
    return next((path for path in candidates if path.is_file()), None)


def _parents(name: str) -> Iterator[str]:
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _state(path: Path) -> tuple[int, int]:
    """The time and size of a file, which change when it is written."""
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size


@cache
def _read(name: str, path: Path, state: tuple[int, int]) -> tuple[str, tuple[str, ...]]:
    """The sha256 of a module's file and the names that it imports; read once per state of the file."""
    content = path.read_bytes()
    return hashlib.sha256(content).hexdigest(), tuple(_imported(name, path, content))


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a tree without the bodies of `if TYPE_CHECKING:`."""
    queue = [tree]
    while queue:
        node = queue.pop()
        yield node
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            queue += node.orelse
        else:
            queue += ast.iter_child_nodes(node)


def _imported(name: str, path: Path, content: bytes) -> Iterator[str]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in _executed(ast.parse(content)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
