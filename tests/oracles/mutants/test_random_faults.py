"""The sampling of random mutants and the tests run on them; the engine itself is in `tox -e mutation`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracles.mutants.random_faults import ROOMS, ROOT, bash, find_unread_spans, read_results, report

CODE = """
def one(given: int | None = 3, *, other: float) -> str | None:
    kept: dict[str, int] = {}
    return "two" if given == 3 else None
"""


def test_annotations_are_told_from_code(tmp_path: Path) -> None:
    """A fault in an annotation is none: nothing evaluates it."""
    (tmp_path / "code.py").write_text(CODE)
    lines = CODE.splitlines()
    texts = {lines[line - 1][start:end] for (line, start), (_, end) in find_unread_spans(tmp_path / "code.py")}
    assert texts == {"int | None", "float", "str | None", "dict[str, int]"}


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_has_code_and_tests(name: str) -> None:
    room = ROOMS[name]
    paths = (*room.code, *(path.removeprefix("--ignore=") for path in room.tests), *room.after)
    assert all((ROOT / part).exists() for part in paths)
    assert {path.removeprefix("--ignore=") for path in room.tests if path.startswith("--")} <= {*room.after}, "put off"
    ignored = [path.removeprefix("--ignore=") for path in room.tests if path.startswith("--")]
    assert all(path.startswith(tuple(test for test in room.tests if test[0] != "-")) for path in ignored)
    command = bash(room, f"{room.code[0]}/some.py")
    assert all(test in command for test in room.tests)
    assert ("--no-store" in command) == room.measures, "stored evidence would hide what measures it"


def test_a_changed_test_of_claims_is_asked_alone() -> None:
    assert " claims/test_roles.py --model" in bash(ROOMS["claims"], "claims/test_roles.py")
    assert " claims --model" in bash(ROOMS["claims"], "claims/conventions.py")


def test_the_tests_of_the_changed_folder_are_asked_first() -> None:
    command = bash(ROOMS["measuring"], "rebinding/experiments/roles/fills.py")
    folders = ("roles", "attention", "binding", "tracing", "circuit")
    assert f" {' '.join(f'tests/experiments/{folder}' for folder in folders)} &&" in command


def test_every_survivor_is_shown(tmp_path: Path) -> None:
    lines = [
        {"fault": "a.py:1:0 AddNot 0", "outcome": "killed", "diff": "-a\n+b"},
        {"fault": "a.py:2:0 AddNot 1", "outcome": "survived", "diff": "-c\n+d"},
    ]
    text = "\n".join(report("verdicts", lines))
    assert text.startswith("verdicts: 2 drawn, 1 killed, 0 late, 1 survived")
    assert "a.py:2:0" in text
    assert "+d" in text
    assert "+b" not in text
    assert read_results(tmp_path / "nothing.jsonl") == []
