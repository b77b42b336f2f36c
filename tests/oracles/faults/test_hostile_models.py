"""Models of strangers: each is refused with its own message, in bounded time and memory, and nothing of theirs runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rebinding.subjects.errors import UnknownName
from rebinding.subjects.names import origin
from tests.oracles.faults.hostile_models import SUBJECTS

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What became of each, in a process of its own that has as much memory as it needs and a gigabyte."""
    command = [sys.executable, "-m", "tests.oracles.faults.hostile_loads", str(tmp_path_factory.mktemp("subjects"))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


def test_there_are_many() -> None:
    assert len(SUBJECTS) >= 40


def test_the_good_one_is_loaded(outcomes: dict[str, dict[str, Any]]) -> None:
    """So what refuses the others is what was done to them."""
    assert (outcomes["as it is"]["code"], outcomes["as it is"]["error"]) == (0, None)


@pytest.mark.parametrize("name", SUBJECTS)
def test_it_is_refused(name: str, outcomes: dict[str, dict[str, Any]]) -> None:
    found, expected = outcomes[name], SUBJECTS[name]
    assert found["code"] == 0, "the kernel ended it: it took more time or memory than there was"
    assert (found["error"], found["module"]) == (expected.error, "rebinding.subjects.errors"), found["says"]
    assert expected.says in found["says"]
    assert not found["ran"]


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31mred", "x/\ry", "./\x07bell", "owner/\u202eeman", "a\u200bb"])
def test_names_that_steer_a_terminal(name: str) -> None:
    """Whether there is such a folder or not; the message shows what cannot be seen."""
    with pytest.raises(UnknownName, match="cannot be seen") as caught:
        origin(name)
    assert str(caught.value).isascii()
    assert str(caught.value).isprintable()
