"""Random faults: places, draws, the map of calls, which tests are tried in which order, and who was first to fail."""

from __future__ import annotations

import ast
import json
import subprocess
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from tests.oracles.mutants import random_faults
from tests.oracles.mutants.faults import FEWEST, PACKAGES, Fault, draw_faults, faults_of, find_faults, key_of
from tests.oracles.mutants.random_faults import (
    EQUIVALENT,
    ROOT,
    CallMap,
    MappedTest,
    limit_seconds,
    main,
    matches,
    own_folder,
    read_equivalent,
    read_lines,
    report,
)

FILE = "rebinding/study/gates.py"
CODE = """
LEAST = -1.5

class Given:
    share: float | None = 0.5

    def at(self, *, other: int | None = 3, **names: float) -> str | None:
        for name in names:
            if not name or (name  # and so on
                            == "two") and other <= 4:
                break
        kept = [name + 1 for name in names if other is None]
        return f"{other + 1}" + str(*kept, **names) if isinstance(self, str | None) else [1] + kept
"""
IN_CODE = {
    ("", "no -"), ("", "1.5 to 2.5"), ("", "1.5 to 0.5"), ("Given", "0.5 to 1.5"), ("Given", "0.5 to -0.5"),
    ("Given.at", "3 to 4"), ("Given.at", "3 to 2"), ("Given.at", "loop of no turns"), ("Given.at", "no not"),
    ("Given.at", "condition to its opposite"), ("Given.at", "or to and"), ("Given.at", "== to !="),
    ("Given.at", "and to or"), ("Given.at", "<= to <"), ("Given.at", "<= to >="), ("Given.at", "4 to 5"),
    ("Given.at", "4 to 3"), ("Given.at", "break to continue"), ("Given.at", "+ to -"), ("Given.at", "1 to 2"),
    ("Given.at", "1 to 0"), ("Given.at", "is to is not"),
}  # fmt: skip


def fault(function: str = "size", in_body: bool = True, file: str = FILE) -> Fault:
    return Fault(file, function, "1 to 2", "return 1", 0, in_body, 0, 1, b"2")


def mapped(name: str, seconds: float, *calls: str, file: str = FILE) -> MappedTest:
    return MappedTest(name, seconds, frozenset((file, call) for call in calls))


def candidates(
    calls: CallMap, place: Fault, importers: Collection[str] = (), without: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """Names of tests and of their neighbours."""
    tests, neighbours = calls.candidates(place, importers, without)
    return [test.name.partition("::")[2] for test in tests], [test.name.partition("::")[2] for test in neighbours]


def test_annotations_messages_and_certain_type_errors_are_no_places() -> None:
    faults = faults_of(CODE.encode(), FILE)
    assert {(fault.function, fault.operator) for fault in faults} == IN_CODE
    assert {fault.line for fault in faults if fault.operator == "+ to -"} == {
        "kept = [name + 1 for name in names if other is None]"
    }
    assert {fault.operator for fault in faults if not fault.in_body} == {
        "no -", "1.5 to 2.5", "1.5 to 0.5", "0.5 to 1.5", "0.5 to -0.5", "3 to 4", "3 to 2",
    }  # fmt: skip


def test_every_fault_is_another_program_and_has_a_key_of_its_own() -> None:
    source = (ROOT / FILE).read_bytes()
    faults = faults_of(source, FILE)
    trees = [ast.dump(ast.parse(fault.apply(source))) for fault in faults]
    assert ast.dump(ast.parse(source)) not in trees
    assert len({fault.key for fault in faults}) == len(faults) > 10


def test_a_fault_keeps_its_key_when_other_lines_change() -> None:
    changed = CODE.replace("LEAST = -1.5", "LEAST = -2.5\nMOST = 7 * LEAST")
    keys, new_keys = ({fault.key for fault in faults_of(code.encode(), FILE)} for code in (CODE, changed))
    assert {key for key in keys if key[1]} <= new_keys
    assert not {key for key in keys if not key[1]} & new_keys


def test_a_draw_has_a_share_of_every_package_and_one_fault_a_place() -> None:
    faults = find_faults(ROOT)
    sample = draw_faults(faults, 300, 0)
    counts = Counter(fault.package for fault in sample)
    assert set(counts) == set(PACKAGES)
    assert min(counts.values()) == FEWEST
    assert len({(fault.file, fault.start) for fault in sample}) == len(sample) >= 300
    assert sample == draw_faults(reversed(faults), 300, 0) != draw_faults(faults, 300, 1)
    assert set(sample) < set(draw_faults(faults, 400, 0))


def test_own_folder_comes_first_then_the_cheapest_file_in_its_own_order() -> None:
    calls = CallMap(
        (
            mapped("tests/api/test_a.py::test_cheap", 0.1, "size"),
            mapped("tests/study/test_b.py::test_long", 3.0, "size"),
            mapped("tests/study/test_b.py::test_neighbour", 0.1, "other"),
            mapped("tests/study/test_b.py::test_short", 0.2, "size"),
            mapped("tests/study/test_c.py::test_other", 0.1, "other"),
            mapped("tests/study/test_d.py::test_middle", 1.0, "size"),
        ),
        frozenset(),
    )
    assert candidates(calls, fault()) == (["test_middle", "test_long", "test_short", "test_cheap"], ["test_neighbour"])
    assert candidates(calls, fault(), without=["tests/study/test_b.py", "tests/api"]) == (["test_middle"], [])


@pytest.mark.parametrize(
    ("place", "collecting"),
    [(fault(in_body=False), []), (fault(), [(FILE, "size")])],
    ids=["default", "called-at-import"],
)
def test_a_place_that_runs_at_import_is_tried_on_tests_of_its_file_and_importers(
    place: Fault, collecting: list[tuple[str, str]]
) -> None:
    calls = CallMap(
        (
            mapped("tests/study/test_a.py::test_importer", 0.1, "judge", file="claims/rules.py"),
            mapped("tests/study/test_b.py::test_file", 0.1, "other"),
            mapped("tests/study/test_c.py::test_function", 0.1, "size"),
            mapped("tests/study/test_d.py::test_elsewhere", 0.1, "other", file="rebinding/study/log.py"),
        ),
        frozenset(collecting),
    )
    assert candidates(calls, place, {"claims/rules.py"}) == (["test_function", "test_file", "test_importer"], [])
    nobody_calls = fault("other_size")
    assert candidates(calls, nobody_calls, {"claims/rules.py"}) == (["test_file", "test_function", "test_importer"], [])


def test_seconds_leave_out_what_does_not_fit() -> None:
    tests = [mapped("a", 200.0), mapped("b", 50.0), mapped("c", 90.0), mapped("d", 60.0)]
    assert [test.name for test in limit_seconds(tests, 120.0)] == ["a"], "one at least"
    assert [test.name for test in limit_seconds(tests[1:], 120.0)] == ["b", "d"]
    assert limit_seconds([], 120.0) == []


def test_a_pattern_is_a_folder_a_file_a_function_or_a_node() -> None:
    test = "tests/study/test_gates.py::test_size[2-3]"
    for pattern in ("tests/study", "tests/study/test_gates.py", "tests/study/test_gates.py::test_size", test):
        assert matches(test, [pattern])
    for pattern in ("tests/stud", "tests/study/test_log", "tests/study/test_gates.py::test_s", "test_size"):
        assert not matches(test, [pattern])


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_has_tests_of_its_own(package: str) -> None:
    assert (ROOT / package).is_dir()
    assert (ROOT / own_folder(package)).is_dir()


def test_every_equivalent_fault_is_in_the_code_and_has_a_reason() -> None:
    reasons = read_equivalent(EQUIVALENT)
    assert reasons.keys() <= {fault.key for fault in find_faults(ROOT)}
    assert all(reasons.values())


def test_the_report_counts_first_killers_and_shows_survivors() -> None:
    kill = {"outcome": "killed", "killer": "tests/study/test_gates.py::test_size"}
    results = [
        kill, kill | {"killer": "tests/api/test_a.py::test_b"}, kill | {"killer": "collection"},
        {"outcome": "late", "killer": "tests/study/test_gates.py::test_size"},
        {"outcome": "survived", "diff": "+real", "tests": 3}, {"outcome": "survived", "diff": "+none", "tests": 3}, {},
    ]  # fmt: skip
    rows = [fault(f"f{number}").identity | result for number, result in enumerate(results)]
    text = "\n".join(report(rows, {key_of(rows[-2]): "the same", key_of(rows[-1]): "the same"}))
    assert "rebinding/study | 7 | 1 | 1 | 1 | 1 | 0 | 1 | 2" in text
    assert "3 first killers\n   2 tests/study/test_gates.py::test_size" in text
    assert "+real" in text
    assert "+none" not in text


PRODUCT = """
TABLE = 4

def in_process(n): return n + 1
def in_child(): return 7
def in_thread(): return 8
def in_fork(): return 9
"""
TESTS = """
import os, subprocess, sys, threading
import claims.small as small

def test_all_ways():
    child = subprocess.run([sys.executable, "-c", "import claims.small as small; assert small.in_child() == 7"])
    thread = threading.Thread(target=small.in_thread)
    thread.start()
    thread.join()
    if (fork := os.fork()) == 0:
        os._exit(small.in_fork() != 9)
    assert (child.returncode, os.waitpid(fork, 0)[1]) == (0, 0)

def test_broken(): assert small.in_process(1) == 0

def test_one(): assert [small.in_process(1)][0] == 2
"""


def test_from_a_map_to_the_first_killer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a small tree: calls in children, threads and forks are on the map, and the log says who failed first."""
    tree, plugin = tmp_path / "tree", "tests/oracles/mutants/calls.py"
    packages = [f"{package}/__init__.py" for package in ("claims", "tests", "tests/oracles", "tests/oracles/mutants")]
    files = dict.fromkeys(packages, "") | {plugin: (ROOT / plugin).read_text("utf-8"), "pytest.ini": "[pytest]"}
    for name, text in (files | {"claims/small.py": PRODUCT, "tests/claims/test_small.py": TESTS}).items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text, "utf-8")
    subprocess.run(["git", "init", "-q", str(tree)], check=True)
    monkeypatch.setattr(random_faults, "ROOT", tree)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p _hypothesis_pytestplugin")
    monkeypatch.chdir(tmp_path)
    faults = {(fault.function, fault.operator): fault for fault in find_faults(tree, ["claims"])}
    mutations = [("in_process", "+ to -"), ("in_fork", "9 to 8"), ("", "4 to 5")]
    Path("mutations.jsonl").write_text("\n".join(json.dumps(faults[key].identity) for key in mutations))
    assert main(["claims", "--mutants", "mutations.jsonl"]) == 0

    calls = CallMap.read(Path("mutation-map.jsonl"))
    assert [test.name.partition("::")[2] for test in calls.tests] == ["test_all_ways", "test_one"], "those that pass"
    functions = {function for file, function in calls.tests[0].calls if file == "claims/small.py" and function}
    assert functions == {"in_child", "in_thread", "in_fork"}
    killers = [line.get("killer", "").partition("::")[2] for line in read_lines(Path("mutation.jsonl"))]
    assert killers == ["test_one", "test_all_ways", ""]

    without = ["--without", "tests/claims/test_small.py::test_one", "--results", "without.jsonl"]
    assert main(["claims", "--mutants", "mutation.jsonl", *without]) == 0
    (lost,) = read_lines(Path("without.jsonl"))
    assert (lost["function"], lost["outcome"]) == ("in_process", "survived")
