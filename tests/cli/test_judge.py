"""`rebinding judge`: what it starts, and what it passes on. Runs in another environment are in tests/wheel."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rebinding.api import judging
from rebinding.cli.commands import main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The commands and environments of processes that would be started; each ends with code 1."""
    calls: list[Any] = []

    def run(command: list[str], *, env: dict[str, str], **_options: Any) -> subprocess.CompletedProcess[str]:
        calls.append((command, env))
        return subprocess.CompletedProcess(command, 1, "")

    monkeypatch.setattr(judging.subprocess, "run", run)
    return calls


def test_headline_rows_are_judged_by_default(started: list[Any], tmp_path: Path) -> None:
    assert main(["judge", "planted:pointer", "FOLDER", "--report", str(tmp_path), "--samples", "24", "-n", "2"]) == 1
    ((command, environment),) = started
    assert command[1:4] == ["-m", "pytest", "-c"]
    assert str(ROOT / "claims") in command
    words = " ".join(command)
    assert "-p fixtures.plugin" in words
    assert "-m headline --model planted:pointer --model FOLDER" in words
    assert words.endswith(f"--report {tmp_path} --samples 24 -n 2")
    assert environment["PYTHONPATH"].split(":")[0] == str(ROOT)


def test_all_rows_and_single_rows(started: list[Any]) -> None:
    main(["judge", "planted:pointer", "--all"])
    main(["judge", "planted:pointer", "--test", "claims/test_x.py::test_y"])
    every, single = (command for command, _ in started)
    assert "headline" not in every
    assert "headline" not in single
    assert str(ROOT / "claims" / "test_x.py::test_y") in single


def test_one_row_is_judged(tmp_path: Path) -> None:
    """A process in an empty folder, whose own settings of pytest have no effect."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    arguments = ["judge", "planted:pointer", "--all", "-k", "q_redirects and not controlled", "--json", "--no-store"]
    code = f"import sys; from rebinding.cli.commands import main; sys.exit(main({arguments}))"
    done = subprocess.run(
        [judging.sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**judging.os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(done.stdout)["claims"]
    assert (row["id"], row["verdict"]) == ("binding.q_redirects", "REPLICATED")
    assert row["command"].startswith("rebinding judge planted:pointer@llama --test 'claims/test_binding.py::")
