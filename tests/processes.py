"""Forks, and modules of tests that run in a process of their own.

A module is run that way to fork: a process with pytest and its threads cannot be forked safely.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def run_module(name: str, *arguments: object) -> Any:
    """The JSON that a module prints when it is run."""
    command = [sys.executable, "-m", name, *map(str, arguments)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def fork(act: Callable[[], int]) -> int:
    """Start a child that exits with the status that `act` returns; the child's number."""
    child = os.fork()
    if child == 0:
        try:
            code = act()
        except BaseException:
            traceback.print_exc()
            code = 99
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return child


def wait_for_child(child: int) -> int:
    """How a process ended: its status, or the signal that ended it as a negative number."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run_in_child(act: Callable[[], int]) -> tuple[int, str]:
    """The status of a child, and its output. The output comes through a pipe, which no limit on files concerns."""
    out, write_end = os.pipe()

    def act_into_pipe() -> int:
        os.dup2(write_end, 1)
        os.dup2(write_end, 2)
        return act()

    child = fork(act_into_pipe)
    os.close(write_end)
    with os.fdopen(out, encoding="utf-8") as file:
        text = file.read()
    return wait_for_child(child), text
