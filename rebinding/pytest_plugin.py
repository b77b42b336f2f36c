"""The entry point by which pytest finds the claims' plugin, `fixtures.plugin`, wherever this package is installed.

It does nothing in a run without rows. The plugin, and with it PyTorch, is loaded for a command line with options that
nothing else declares, or when a module with rows is collected.
"""

from __future__ import annotations

import atexit
import gc
import inspect
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent
PLUGIN = "rebinding.suite.fixtures.plugin" if (PACKAGE / "suite" / "fixtures").is_dir() else "fixtures.plugin"
"""The plugin lies inside an installed package, and beside the package in a clone."""
DOOR = "rebinding.testing"
"""A module with rows imports it."""


def load(plugins: pytest.PytestPluginManager) -> None:
    """Load the claims' plugin, once; late in a run as well."""
    if plugins.has_plugin(PLUGIN):
        return
    if PLUGIN == "fixtures.plugin" and (root := str(PACKAGE.parent)) not in sys.path:
        sys.path.append(root)
    try:
        with without_collecting():
            plugins.import_plugin(PLUGIN)
    except ValueError as error:
        raise pytest.UsageError(
            f"the options of the claims meet others of the same name ({error}): judge rows in a folder whose"
            " conftest.py and plugins do not declare it"
        ) from None


@contextmanager
def without_collecting() -> Iterator[None]:
    """Import modules without collecting garbage meanwhile, and leave what they hold out of all later collections, of
    which Python makes one at exit: a second of a run. Once a process: what is frozen is never freed."""
    is_first, was_enabled = not gc.get_freeze_count(), gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
    if is_first:
        gc.freeze()
        atexit.register(gc.freeze)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: Sequence[str]
) -> Generator[None, object, object]:
    """Load the plugin for a command line with options that neither pytest, its plugins nor a conftest.py declares."""
    result = yield
    _, unknown = parser.parse_known_and_unknown_args(list(args))
    if any(word.startswith("--") for word in unknown):
        load(early_config.pluginmanager)
    return result


def pytest_pycollect_makeitem(collector: pytest.Collector, obj: object) -> None:
    """Load the plugin for the first function with claims, before pytest looks up its fixtures."""
    door = sys.modules.get(DOOR)
    if door is None or collector.config.pluginmanager.has_plugin(PLUGIN):
        return
    if not inspect.isfunction(obj) or not door.claims_of(obj):
        return
    try:
        load(collector.config.pluginmanager)
    except pytest.UsageError as error:
        pytest.exit(str(error), returncode=pytest.ExitCode.USAGE_ERROR)
