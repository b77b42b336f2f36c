"""Runs of pytest without seconds of imports: a process that has imported what every run imports forks one for each.

    python -m tests.claims.forked_pytest    # reads runs, one JSON object per line: "arguments", "folder", "environment"

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
    *(f"transformers.models.{family}.modeling_{family}" for family in ("llama", "gemma2", "gemma3")),
)
IGNORE_LATE_IMPORT = ("-W", "ignore:Module already imported so cannot be rewritten:pytest.PytestAssertRewriteWarning")
"""Two of these come with plugins, whose assertions pytest would rewrite."""


def pytest(arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """`python -m pytest` in a folder, in a process of its own."""
    with tempfile.TemporaryDirectory() as outputs:
        job = {
            "arguments": list(arguments),
            "folder": str(folder),
            "environment": dict(environment),
            "outputs": outputs,
        }
        process = _start_forking_process()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{json.dumps(job)}\n")
        process.stdin.flush()
        reply = process.stdout.readline()
        assert reply, "the process that forks is gone"
        out, err = ((Path(outputs) / name).read_text("utf-8", errors="replace") for name in ("1", "2"))
    return subprocess.CompletedProcess(["pytest", *arguments], int(reply), out, err)


@cache
def _start_forking_process() -> subprocess.Popen[str]:
    """It ends when this process does, and its pipe with it."""
    command = [sys.executable, "-m", "tests.claims.forked_pytest"]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(process.communicate)
    return process


def _run(arguments: Sequence[str], folder: str, environment: Mapping[str, str], outputs: str) -> int:
    """Become that run; returns its status."""
    for number, path in enumerate((os.devnull, f"{outputs}/1", f"{outputs}/2")):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["pytest", *arguments, *IGNORE_LATE_IMPORT]
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
