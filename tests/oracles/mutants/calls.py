"""The call map: which functions of the product run during each test, whether the test passes, and its seconds.

    pytest tests -p tests.oracles.mutants.calls --call-map FILE

Setup and teardown count. Threads count if they begin during the test. Child processes count if they are forked, or are
Python with this process's `PYTHONPATH`, and end before the test does in any other way than by a signal.

What the map cannot see: a test that only reads what an earlier test computed (a cache, a fixture of a module, a stored
shard) has no call of the functions that computed it. The test that computed it has.

This file imports the standard library alone, because a copy of it runs at the start of every child process.
"""

from __future__ import annotations

import atexit
import cProfile
import json
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

PRODUCT = ("rebinding", "claims", "fixtures")
Function = tuple[str, str]
"""File and qualified name; the name is empty for the code of the module itself."""


def function_of(code: CodeType, root: str) -> Iterator[Function]:
    """The function of the product that a code object is part of; a lambda or a comprehension is no function."""
    path = os.path.relpath(code.co_filename, root) if code.co_filename.startswith(f"{root}{os.sep}") else ""
    if path.split(os.sep)[0] in PRODUCT:
        yield path, re.sub(r"(\.<locals>)?\.?<(?!locals>).*", "", code.co_qualname)


class Recorder:
    """Calls of Python functions in this process, by the C profiler: every thread that begins gets one of its own."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._profiles: list[cProfile.Profile] = []

    def start(self) -> None:
        self._profiles = []
        threading.setprofile(self._profile_thread)
        self._profile_thread()

    def stop(self) -> set[Function]:
        for profile in self._profiles:
            profile.disable()  # this also counts calls that have not returned
        codes = {entry.code for profile in self._profiles for entry in profile.getstats()}
        return {function for code in codes if isinstance(code, CodeType) for function in function_of(code, self._root)}

    def _profile_thread(self, *_: Any) -> None:
        profile = cProfile.Profile(builtins=False)
        self._profiles.append(profile)
        profile.enable()


def record_forks(recorder: Recorder, folder: str) -> Callable[[], None]:
    """Write a file into `folder` where a process ends at once, as forked ones do; returns what writes it."""
    exit_at_once = os._exit

    def write() -> None:
        path = os.path.join(folder, f"{os.getpid()}.json")
        if functions := recorder.stop():
            with open(f"{path}.part", "w", encoding="utf-8") as file:
                json.dump(sorted(functions), file)
            os.replace(f"{path}.part", path)

    def write_and_exit(status: int) -> None:
        with suppress(OSError):
            write()
        exit_at_once(status)

    os._exit = write_and_exit  # type: ignore[assignment]
    return write


def record_child(root: str, folder: str) -> None:
    """What `sitecustomize` calls in a child process."""
    recorder = Recorder(root)
    recorder.start()
    atexit.register(record_forks(recorder, folder))


class CallMapWriter:
    """Writes lines of JSON: a function is its file and name, a test names the functions by number. What is called while
    tests are collected is on the line of a test without a name."""

    def __init__(self, file: Path, root: str) -> None:
        self._file = file.open("w", encoding="utf-8")
        self._numbers: dict[Function, int] = {}
        self._passed, self._seconds = True, 0.0
        self._recorder = Recorder(root)
        self._children = tempfile.mkdtemp()
        text = f"{Path(__file__).read_text('utf-8')}\n\nrecord_child({root!r}, {self._children!r})\n"
        Path(self._children, "sitecustomize.py").write_text(text, "utf-8")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (self._children, os.environ.get("PYTHONPATH"))))
        record_forks(self._recorder, self._children)
        self._recorder.start()

    def pytest_collection_finish(self) -> None:
        self.pytest_runtest_logfinish("")

    def pytest_runtest_logstart(self) -> None:
        self._passed, self._seconds = True, 0.0
        self._recorder.start()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._passed &= report.passed
        self._seconds += report.duration

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        functions = self._recorder.stop()
        for path in Path(self._children).glob("*.json"):
            functions |= {(file, name) for file, name in json.loads(path.read_text("utf-8"))}
            path.unlink()
        for function in sorted(functions - self._numbers.keys()):
            self._numbers[function] = len(self._numbers)
            self._write({"function": function})
        calls = sorted(self._numbers[function] for function in functions)
        self._write({"test": nodeid, "seconds": round(self._seconds, 3), "passed": self._passed, "calls": calls})

    def pytest_unconfigure(self) -> None:
        self._file.close()
        shutil.rmtree(self._children, ignore_errors=True)

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(f"{json.dumps(line)}\n")
        self._file.flush()


class ListedTests:
    """Runs the tests that a file lists, in that order. Beside it, a file with lines of JSON says which tests began, and
    which failed and why.

    A fault may change the parameters that tests are named after: where a listed test is not there, the tests of its
    function that are not listed take its place.
    """

    def __init__(self, file: Path) -> None:
        self._ranks = {nodeid: rank for rank, nodeid in enumerate(json.loads(file.read_text("utf-8")))}
        self._log = file.with_suffix(".log.jsonl")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        missing = self._ranks.keys() - {item.nodeid for item in items}
        stand_ins = {nodeid.partition("[")[0]: self._ranks[nodeid] for nodeid in missing}
        ranks = {item: self._ranks.get(item.nodeid, stand_ins.get(item.nodeid.partition("[")[0], -1)) for item in items}
        items[:] = sorted((item for item in items if ranks[item] >= 0), key=ranks.__getitem__)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write({"test": nodeid})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self._write({"test": report.nodeid, "reason": getattr(crash, "message", str(report.longrepr))[:300]})

    def _write(self, line: Mapping[str, str]) -> None:
        with self._log.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(line)}\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--call-map", metavar="FILE", help="write which functions of the product each test calls")
    parser.addoption("--listed-tests", metavar="FILE", help="run these, in this order: a list of node ids as JSON")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--call-map"):
        config.pluginmanager.register(
            CallMapWriter(Path(config.getoption("--call-map")).absolute(), str(config.rootpath))
        )
    if config.getoption("--listed-tests"):
        config.pluginmanager.register(ListedTests(Path(config.getoption("--listed-tests"))))
