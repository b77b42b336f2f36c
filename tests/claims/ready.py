"""Runs of pytest without seconds of imports: a process that has imported what every run imports forks one for each.

    python -m tests.claims.ready        a run a line, as JSON: {"given": [...], "folder": ..., "environment": {...}}

A fork is what `python -m pytest` is after these imports, with arguments, folder and environment of its own. Nothing of
the project's plugin is imported before, and no model is built.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEAVY = (
    "hypothesis.internal.observability",  # by its plugin, at the end of every run
    "rebinding.study.study",
    *(f"transformers.models.{one}.modeling_{one}" for one in ("llama", "gemma2", "gemma3")),
)
LATE = ("-W", "ignore:Module already imported so cannot be rewritten:pytest.PytestAssertRewriteWarning")
"""Two of these come with plugins, whose assertions pytest would rewrite."""


def pytest(given: Sequence[str], folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """`python -m pytest` in a folder, in a process of its own."""
    with tempfile.TemporaryDirectory() as said:
        asked = {"given": list(given), "folder": str(folder), "environment": dict(environment), "said": said}
        ready = _ready()
        assert ready.stdin is not None
        assert ready.stdout is not None
        ready.stdin.write(f"{json.dumps(asked)}\n")
        ready.stdin.flush()
        told = ready.stdout.readline()
        assert told, "the process that forks is gone"
        out, err = ((Path(said) / name).read_text("utf-8", errors="replace") for name in ("1", "2"))
    return subprocess.CompletedProcess(["pytest", *given], int(told), out, err)


@cache
def _ready() -> subprocess.Popen[str]:
    """It ends when this process does, and its pipe with it."""
    command = [sys.executable, "-m", "tests.claims.ready"]
    started = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(started.communicate)
    return started


def _run(given: Sequence[str], folder: str, environment: Mapping[str, str], said: str) -> int:
    """Become that run; returns its status."""
    for number, there in enumerate((os.devnull, f"{said}/1", f"{said}/2")):
        os.dup2(os.open(there, os.O_RDWR | os.O_CREAT), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["pytest", *given, *LATE]
    try:
        runpy.run_module("pytest", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    return 1


def main() -> None:
    for name in HEAVY:
        import_module(name)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = _run(**json.loads(line))
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
