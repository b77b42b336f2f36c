"""The progress of a run: a bar on a terminal, elsewhere a letter per test."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.claims.test_plugin import ROWS

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[2]
ARGUMENTS = (
    "--model",
    "planted:pointer",
    "--samples",
    "12",
    "--no-store",
    "-p",
    "no:cacheprovider",
    "-p",
    "fixtures.plugin",
)


def run_on_terminal(folder: Path, *options: str) -> str:
    """The output of such a run on a terminal."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))  # without a size nothing is shown
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", *ARGUMENTS, *options], cwd=folder, env=environment, stdout=child, stderr=child
    )
    os.close(child)
    output = b""
    while True:
        try:
            chunk = os.read(parent, 1 << 16)
        except OSError:  # on Linux, when the child has closed its end
            break
        if not chunk:
            break
        output += chunk
    os.close(parent)
    assert run.wait() == 1, "two of the four rows fail"
    return output.decode()


@pytest.mark.slow
def test_a_terminal_shows_where_the_run_is(pytester: pytest.Pytester) -> None:
    """Model, claim and experiment, how many of how many, and what is left; no letters, and the count at the end."""
    pytester.makepyfile(test_small=ROWS)
    output = run_on_terminal(pytester.path)
    lines = re.findall(r"(\d) of 4 claims, (\S+) left  planted:pointer@llama  ([\w.]+)(?:: ([\w-]+))?", output)
    assert lines
    assert [number for number, *_ in lines] == sorted(number for number, *_ in lines)
    assert {number for number, *_ in lines} >= {"0", "1", "2", "3"}
    assert {experiment for *_, experiment in lines} >= {"replays", "ability"}
    assert re.search(r"\d\d:\d\d", lines[-1][1]), "after the first claim it is known how long the others take"
    assert "2 failed, 2 passed" in output
    assert not re.search(r"[.F]{2,} *\[100%\]", output)


@pytest.mark.slow
def test_pytest_prints_letters_without_a_terminal(pytester: pytest.Pytester) -> None:
    """In a file, and on a terminal with -v, where every test has a line of its own."""
    pytester.makepyfile(test_small=ROWS)
    run = pytester.runpytest_subprocess(*ARGUMENTS)
    run.assert_outcomes(passed=2, failed=2)
    assert "claims," not in run.stdout.str()
    assert re.search(r"test_small\.py [.F]{4}", run.stdout.str())
    assert "of 4 claims" not in run_on_terminal(pytester.path, "-v")
