"""Mutation testing: the share of randomly drawn changes that the everyday tests catch, and which test catches each.

    tox -e mutation -- [PACKAGE ...] [--draw N] [--seed N] [--map FILE] [--results FILE]

The faults of `mutants.py` were thought up together with the cells that catch them; these are drawn (`faults.py`). The
call map (`calls.py`) is made first, by one run of all tests. A fault is tried on the tests that call the changed
function, those of its package's folder first, then file by file, cheapest first, until one fails: the first killer.
A place that runs at import is tried on the tests that call anything of the file, then of files that import it.

The same faults again, after the tests changed: `--mutants FILE` reads them from results, with a new map. Which faults
only tests catch that are about to go: `--mutants RESULTS --without TEST ...` takes those whose first killer is among
these tests (files, folders, node ids), and tries them on all others.

A fault that no candidate catches is tried on the other tests of the same files, as far as `--seconds` allows: these may
read what a candidate computed. Then it survived, or is "capped" if `--seconds` left candidates out. What other files
read of it is not on the map (`calls.py`), so a survivor is one of the map. What runs too long counts as killed, late.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from tqdm import tqdm

from tests.oracles.mutants.calls import PRODUCT, Function
from tests.oracles.mutants.faults import PACKAGES, Fault, draw_faults, find_faults, key_of

ROOT = Path(__file__).parents[3]
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
"""Faults that change no behaviour, each with the reason."""
SUITE = ("tests", "--ignore=tests/wheel")
SLOWER, START = 5.0, 60.0
"""How many times as long as on the map tests may take, and seconds to start: more is held against the fault."""
NO_TESTS = pytest.ExitCode.NO_TESTS_COLLECTED
NEIGHBOUR = 3
COLLECTION = "collection"
"""The first killer of a fault with which the tests cannot be collected."""
OUTCOMES = ("own tests", "other tests", COLLECTION, "late", "capped", "survived", "equivalent")


@dataclass(frozen=True)
class MappedTest:
    """A test of the call map."""

    name: str
    seconds: float
    calls: frozenset[Function]

    @property
    def file(self) -> str:
        return self.name.partition("::")[0]


@dataclass(frozen=True)
class CallMap:
    """Tests that pass, in the order of a whole run, and what is called while they are collected."""

    tests: tuple[MappedTest, ...]
    collecting: frozenset[Function]

    @classmethod
    def read(cls, file: Path) -> CallMap:
        lines = read_lines(file)
        functions: list[Function] = [(line["function"][0], line["function"][1]) for line in lines if "function" in line]
        tests = {
            line["test"]: MappedTest(line["test"], line["seconds"], frozenset(functions[i] for i in line["calls"]))
            for line in lines
            if "test" in line and line["passed"]
        }
        collecting = tests.pop("").calls if "" in tests else frozenset[Function]()
        return cls(tuple(tests.values()), collecting)

    def candidates(
        self, fault: Fault, importers: Collection[str], without: Sequence[str] = ()
    ) -> tuple[list[MappedTest], list[MappedTest]]:
        """The tests that may catch a fault, in the order in which they are tried, and their neighbours.

        Own folder first; those that call the function, then its file, then files that import it; the cheapest file
        first, each in its own order. Neighbours are the other tests of these files: they may share what was computed.
        """
        called = fault.file, fault.function
        in_calls = fault.in_body and called not in self.collecting and any(called in test.calls for test in self.tests)
        importing = frozenset(importers)
        groups: dict[tuple[bool, bool, int, str], list[MappedTest]] = {}
        tests = [test for test in self.tests if not matches(test.name, without)]
        nearness = {}
        for test in tests:
            files = () if in_calls else {file for file, _ in test.calls}
            near = (called in test.calls, fault.file in files, not importing.isdisjoint(files))
            if True in near:
                nearness[test] = near.index(True)
        own, near_files = own_folder(fault.package), {test.file for test in nearness}
        for test in tests:
            if test.file in near_files:
                rank = nearness.get(test, NEIGHBOUR)
                key = (rank == NEIGHBOUR, not matches(test.name, [own]), rank, test.file)
                groups.setdefault(key, []).append(test)
        order = sorted(groups, key=lambda key: (key[:3], sum(test.seconds for test in groups[key]), key[3]))
        ordered = [test for key in order for test in groups[key]]
        return ordered[: len(nearness)], ordered[len(nearness) :]


def own_folder(package: str) -> str:
    return f"tests/{package.removeprefix('rebinding/')}"


def matches(test: str, patterns: Iterable[str]) -> bool:
    """Whether a node id is one of these folders, files, functions or node ids, or inside of one."""
    return any(test == pattern or (test.startswith(pattern) and test[len(pattern)] in "/:[") for pattern in patterns)


def limit_seconds(tests: Sequence[MappedTest], seconds: float) -> list[MappedTest]:
    """The tests in their order, without those that would make it more; one at least."""
    chosen, total = [*tests[:1]], sum(test.seconds for test in tests[:1])
    for test in tests[1:]:
        if total + test.seconds <= seconds:
            chosen.append(test)
            total += test.seconds
    return chosen


def find_importers(root: Path, file: str) -> set[str]:
    """Files of the product with an import that has the name of this module, or of its package if that passes it on."""
    path = Path(file)
    package = path.parent / "__init__.py"
    names = [path.stem] if path.name != "__init__.py" else [path.parent.name]
    if path != package and re.search(rf"\b{path.stem}\b", (root / package).read_text("utf-8")):
        names.append(path.parent.name)
    pattern = re.compile(rf"^\s*(from|import) .*\b({'|'.join(names)})\b", re.MULTILINE)
    paths = [found for part in PRODUCT for found in (root / part).rglob("*.py")]
    return {found.relative_to(root).as_posix() for found in paths if pattern.search(found.read_text("utf-8"))}


class Workspace:
    """A copy of the tree to change, and runs of pytest in it, each with its own store and temporary files."""

    def __init__(self, folder: Path) -> None:
        self.tree, self._temporary = folder / "tree", folder / "temporary"
        self._times = count(1_000_000_000)
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        for name in subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
            (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_file():
                shutil.copy2(ROOT / name, self.tree / name)

    def make_map(self, file: Path) -> None:
        """Run every test once."""
        part = file.with_suffix(".part")
        if self._pytest([*SUITE, "--call-map", str(part)], None, sys.stderr.fileno()) not in (0, 1):
            raise RuntimeError("the tests cannot be run without a fault")
        part.replace(file)

    def try_fault(self, fault: Fault, tests: Sequence[MappedTest]) -> Mapping[str, Any]:
        """Change, test, put back."""
        path, source = self.tree / fault.file, (self.tree / fault.file).read_bytes()
        start = monotonic()
        try:
            self._write(path, fault.apply(source))
            code, log = self._run_listed(tests, "-x") if tests else (0, [])
        finally:
            self._write(path, source)
        begun, failed = [{"test": COLLECTION}, *log][-1], [line for line in log if "reason" in line]
        result: dict[str, Any] = {"outcome": "survived"}
        if code is None:
            result = {"outcome": "late", "killer": begun["test"]}
        elif failed or code not in (0, NO_TESTS):
            first = (failed or [begun])[0]
            result = {"outcome": "killed", "killer": first["test"], "reason": first.get("reason", f"exit code {code}")}
        return {**result, "tests": len(tests), "seconds": round(monotonic() - start, 1), "diff": fault.diff(source)}

    def find_false_killers(self, tests: Sequence[MappedTest]) -> list[str]:
        """Those that fail without a fault, in this order."""
        _, log = self._run_listed(tests)
        return [line["test"] for line in log if "reason" in line]

    def _run_listed(self, tests: Sequence[MappedTest], *options: str) -> tuple[int | None, list[dict[str, Any]]]:
        """The exit code (None if it took too long), and what the plugin wrote."""
        file = self._temporary.with_suffix(".json")
        file.write_text(json.dumps([test.name for test in tests]), "utf-8")
        log = file.with_suffix(".log.jsonl")
        log.unlink(missing_ok=True)
        limit = SLOWER * sum(test.seconds for test in tests) + START
        files = dict.fromkeys(test.file for test in tests)
        with file.with_suffix(".output").open("wb") as output:
            code = self._pytest([*files, *options, "--listed-tests", str(file)], limit, output.fileno())
        return code, read_lines(log)

    def _pytest(self, arguments: Sequence[str], limit: float | None, output: int) -> int | None:
        shutil.rmtree(self._temporary, ignore_errors=True)
        self._temporary.mkdir()
        environment = os.environ | {
            "PYTHONPATH": str(self.tree), "TMPDIR": str(self._temporary),
            "REBINDING_STORE": str(self._temporary / "store"),
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self._temporary / "hypothesis"),
        }  # fmt: skip
        options = ["-q", "--hypothesis-seed=0", "-p", "no:cacheprovider", "-p", "tests.oracles.mutants.calls"]
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *arguments, *options], cwd=self.tree, env=environment, stdout=output,
            stderr=output, start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _write(self, path: Path, source: bytes) -> None:
        """Each with a time of its own, since compiled files are matched by time and size."""
        path.write_bytes(source)
        os.utime(path, (next(self._times),) * 2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw, try, report; a line of JSON for each fault, so that a run that was cut off goes on."""
    options = _options(arguments)
    known = {fault.key: fault for fault in find_faults(ROOT)}
    if options.mutants:
        lines, without = read_lines(options.mutants), options.without
        lines = [line for line in lines if not without or matches(line.get("killer", ""), without)]
        faults = [known[key_of(line)] for line in lines if key_of(line) in known]
        if len(faults) < len(lines):
            print(f"{len(lines) - len(faults)} of {len(lines)} faults are not in this code", file=sys.stderr)
    else:
        faults = draw_faults(known.values(), options.draw, options.seed)
    faults = [fault for fault in faults if fault.package in options.packages]
    if options.list:
        print("\n".join(json.dumps(fault.identity) for fault in faults))
        return 0
    equivalent = read_equivalent(EQUIVALENT)
    done = {key_of(line) for line in read_lines(options.results)} | equivalent.keys()
    pending = [fault for fault in faults if fault.key not in done]
    false_killers = _try(pending, options) if pending else []
    rows = {fault.key: fault.identity for fault in faults if fault.key in equivalent}
    rows |= {key_of(line): line for line in read_lines(options.results)}
    print("\n".join(report([rows[fault.key] for fault in faults if fault.key in rows], equivalent)))
    for test in false_killers:
        print(f"fails without a fault too, so what it killed is open: {test}")
    return bool(false_killers)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.oracles.mutants.random_faults", description=__doc__)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=f"default: {', '.join(PACKAGES)}")
    parser.add_argument("--draw", type=int, default=300, metavar="N", help="faults at least (default: 300)")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--mutants", type=Path, metavar="FILE", help="faults of --list, or of earlier results")
    parser.add_argument("--without", nargs="+", default=[], metavar="TEST", help="with --mutants: see above")
    parser.add_argument("--list", action="store_true", help="print the faults, try none")
    parser.add_argument("--map", type=Path, default="mutation-map.jsonl", metavar="FILE", help="made if it is missing")
    parser.add_argument(
        "--results", type=Path, default="mutation.jsonl", metavar="FILE", help="continued if it is there"
    )
    parser.add_argument("--seconds", type=float, default=120, metavar="N", help="of tests for a fault (default: 120)")
    options = parser.parse_args(arguments)
    options.packages = [package.rstrip("/") for package in options.packages] or list(PACKAGES)
    if unknown := set(options.packages) - set(PACKAGES):
        parser.error(f"no such package: {', '.join(sorted(unknown))}; give some of {', '.join(PACKAGES)}")
    if options.without and not options.mutants:
        parser.error("--without needs --mutants RESULTS, which say what each test killed")
    if options.mutants == options.results:
        parser.error(f"--mutants and --results are both {options.results}; name another file for the new results")
    return options


def _try(faults: Sequence[Fault], options: argparse.Namespace) -> list[str]:
    """Try each, write what came out; returns the killers that fail without a fault."""
    killers = set()
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(Path(folder).resolve())
        if not options.map.exists():
            workspace.make_map(options.map.absolute())
        calls = CallMap.read(options.map)
        for fault in tqdm(faults):
            tests, neighbours = calls.candidates(fault, find_importers(ROOT, fault.file), options.without)
            chosen = limit_seconds([*tests, *neighbours], options.seconds)
            line = {**fault.identity, **workspace.try_fault(fault, chosen), "cut": len({*tests} - {*chosen})}
            if line["cut"] and line["outcome"] == "survived":
                line["outcome"] = "capped"
            killers.add(line.get("killer"))
            with options.results.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(line)}\n")
        tests = [test for test in calls.tests if test.name in killers]
        return workspace.find_false_killers(tests) if tests else []


def report(rows: Sequence[Mapping[str, Any]], equivalent: Mapping[tuple[Any, ...], str]) -> Iterator[str]:
    """A table by package, how many faults each first killer has, and every survivor as a difference."""
    counts = Counter((_package(row), _column(row, equivalent)) for row in rows)
    yield " | ".join(["package", "drawn", *OUTCOMES])
    yield " | ".join(["---", *["---:" for _ in ("drawn", *OUTCOMES)]])
    for package in [*(package for package in PACKAGES if any(_package(row) == package for row in rows)), "all"]:
        n = [sum(counts[p, outcome] for p in PACKAGES if package in (p, "all")) for outcome in OUTCOMES]
        yield " | ".join([package, str(sum(n)), *map(str, n)])
    killers = Counter(row["killer"] for row in rows if row.get("killer"))
    yield f"\n{len(killers)} first killers"
    yield from (f"{n:4} {test}" for test, n in killers.most_common())
    for row in rows:
        if (column := _column(row, equivalent)) in ("survived", "capped"):
            yield f"\n{column} {row['tests']} tests: {row['file']}, {row['function']}: {row['operator']}"
            yield row.get("diff", row["line"])


def _package(row: Mapping[str, Any]) -> str:
    return next(package for package in PACKAGES if row["file"].startswith(f"{package}/"))


def _column(row: Mapping[str, Any], equivalent: Mapping[tuple[Any, ...], str]) -> str:
    """What the table counts a fault as."""
    outcome: str = row.get("outcome", "equivalent")
    if outcome != "killed":
        return "equivalent" if key_of(row) in equivalent else outcome
    if row["killer"] == COLLECTION:
        return COLLECTION
    return "own tests" if matches(row["killer"], [own_folder(_package(row))]) else "other tests"


def read_equivalent(file: Path) -> dict[tuple[Any, ...], str]:
    """Reasons by the key of a fault."""
    entries = tomllib.loads(file.read_text("utf-8")).get("fault", [])
    return {key_of(entry): entry["reason"] for entry in entries}


def read_lines(file: Path) -> list[dict[str, Any]]:
    """Lines of JSON, if there are any."""
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


if __name__ == "__main__":
    raise SystemExit(main())
