"""Imports every module of a package where the claims, the plugin and pytest cannot be imported.

    python -m tests.tree.isolated_import PACKAGE

Of `rebinding` the help of every subcommand is asked for as well. What happened is printed as JSON: the modules, the
helps, and every attempt of the package to import what it must not.
"""

from __future__ import annotations

import importlib
import importlib.abc
import io
import json
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout, suppress
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import TypeAlias

FORBIDDEN = ("claims", "fixtures", "pytest", "_pytest")
DOORS = ("rebinding.testing", "rebinding.pytest_plugin")
"""What suites of claims and pytest import: it needs pytest, and nothing else of the package needs it."""
Attempt: TypeAlias = tuple[str, str]
"""Which module tried to import which."""


class Refusing(importlib.abc.MetaPathFinder):
    """Finds nothing that is forbidden, and notes whether the package asked. Other libraries may look for pytest: to
    them it is not installed."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.attempts: list[Attempt] = []
        """Kept here too, since whoever imports may catch the error."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if _root(name) not in FORBIDDEN:
            return None
        importer = _importer(sys._getframe(1))
        if _root(importer) == self.package:
            self.attempts.append((importer, name))
        raise ModuleNotFoundError(f"{importer} must not import {name}", name=name)


def list_modules(package: str) -> Iterator[str]:
    """Import a package and every module in it, each by its name."""
    module = importlib.import_module(package)
    yield package
    for module_info in pkgutil.iter_modules(module.__path__, f"{package}."):
        if module_info.name in DOORS:
            continue
        if module_info.ispkg:
            yield from list_modules(module_info.name)
        else:
            importlib.import_module(module_info.name)
            yield module_info.name


def helps() -> dict[str, str]:
    """What `rebinding COMMAND --help` prints, by command; `` is the help of the whole."""
    from rebinding.cli.commands import SUBCOMMANDS, main

    printed = {}
    for subcommand in ("", *SUBCOMMANDS):
        out = io.StringIO()
        with redirect_stdout(out), suppress(SystemExit):
            main([*([subcommand] if subcommand else []), "--help"])
        printed[subcommand] = out.getvalue()
    return printed


def _importer(frame: FrameType | None) -> str:
    """The module whose code imports: the first on the stack that does not belong to Python itself."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if _root(name) not in sys.stdlib_module_names:
            return name
        frame = frame.f_back
    return "__main__"


def _root(name: str) -> str:
    return name.partition(".")[0]


def main(package: str) -> None:
    refusing = Refusing(package)
    assert not set(map(_root, sys.modules)) & set(FORBIDDEN), "too late: one of them is imported"
    sys.meta_path.insert(0, refusing)
    names: list[str] = []
    error = ""
    try:
        names += list_modules(package)
    except ImportError as raised:
        error = str(raised)
    printed = helps() if package == "rebinding" and not error else {}
    print(json.dumps({"modules": names, "helps": printed, "attempts": refusing.attempts, "error": error}))


if __name__ == "__main__":
    main(sys.argv[1])
