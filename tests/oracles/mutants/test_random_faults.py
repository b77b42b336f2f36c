"""What is drawn blindly, and what is asked of it; the engine itself is in `tox -e mutation`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracles.mutants.random_faults import ROOMS, ROOT, bash, report, told, unread_in

CODE = """
def one(given: int | None = 3, *, other: float) -> str | None:
    kept: dict[str, int] = {}
    return "two" if given == 3 else None
"""


def test_annotations_are_told_from_code(tmp_path: Path) -> None:
    """A fault in an annotation is none: nothing evaluates it."""
    (tmp_path / "code.py").write_text(CODE)
    lines = CODE.splitlines()
    found = {lines[line - 1][start:end] for (line, start), (_, end) in unread_in(tmp_path / "code.py")}
    assert found == {"int | None", "float", "str | None", "dict[str, int]"}


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_has_code_and_tests(name: str) -> None:
    room = ROOMS[name]
    named = (*room.code, *(one.removeprefix("--ignore=") for one in room.tests), *room.after)
    assert all((ROOT / part).exists() for part in named)
    assert {one.removeprefix("--ignore=") for one in room.tests if one.startswith("--")} <= {*room.after}, "put off"
    asked = bash(room, f"{room.code[0]}/some.py")
    assert all(test in asked for test in room.tests)
    assert ("--no-store" in asked) == room.measures, "stored evidence would hide what measures it"


def test_a_changed_test_of_claims_is_asked_alone() -> None:
    assert " claims/test_roles.py --model" in bash(ROOMS["claims"], "claims/test_roles.py")
    assert " claims --model" in bash(ROOMS["claims"], "claims/shifts.py")


def test_the_tests_of_the_changed_folder_are_asked_first() -> None:
    asked = bash(ROOMS["measuring"], "rebinding/experiments/roles/fills.py")
    folders = ("roles", "attention", "binding", "tracing", "circuit")
    assert f" {' '.join(f'tests/experiments/{one}' for one in folders)} &&" in asked


def test_every_survivor_is_shown(tmp_path: Path) -> None:
    lines = [
        {"fault": "a.py:1:0 AddNot 0", "outcome": "killed", "diff": "-a\n+b"},
        {"fault": "a.py:2:0 AddNot 1", "outcome": "survived", "diff": "-c\n+d"},
    ]
    said = "\n".join(report("verdicts", lines))
    assert said.startswith("verdicts: 2 drawn, 1 killed, 0 late, 1 survived")
    assert "a.py:2:0" in said
    assert "+d" in said
    assert "+b" not in said
    assert told(tmp_path / "nothing.jsonl") == []
