"""Waiting times of a newcomer and a contributor, by part: `python -m benchmarks.minutes [REPEATS]`.

A fresh clone of the last commit runs `.ci/run`: it installs, runs the README's first command, then every check of
`tox`. Seconds say something of one machine; each is shown as a multiple of one product of two 1024 x 1024 matrices too.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

from benchmarks.parts import VARIABLE
from benchmarks.test_parts import product_seconds

ROOT = Path(__file__).parents[1]
CHECK = re.compile(r"^\s+(\w+): (OK|FAIL\b.*?) \((?P<seconds>[\d.]+)=")
"""A line of the summary that tox prints."""
COMMAND = "+ "
"""How `.ci/run` announces a command of the README."""


def time_ci_parts(clone: Path) -> Iterator[tuple[str, float]]:
    """The parts of `.ci/run` with their seconds, as it prints them."""
    environment = {name: value for name, value in os.environ.items() if name not in (VARIABLE, "VIRTUAL_ENV")}
    begin = start = perf_counter()
    name = "installation"
    with subprocess.Popen(
        [".ci/run"], cwd=clone, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if line.startswith(COMMAND):
                yield name, perf_counter() - start
                start, name = perf_counter(), line.removeprefix(COMMAND).strip()
            elif name == "tox" and (match := CHECK.match(line)):
                yield f"tox, {match[1]}", float(match["seconds"])
    yield "all", perf_counter() - begin
    if run.returncode:
        raise SystemExit(f".ci/run ended with {run.returncode}")


def measure() -> dict[str, float]:
    """One run in a clone that is thrown away afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        return dict(time_ci_parts(clone))


def main(repeats: int) -> None:
    unit = product_seconds()
    print(f"one product of 1024 x 1024 matrices: {unit * 1e3:.1f} ms; {os.cpu_count()} cores; median of {repeats}")
    runs = [measure() for _ in range(repeats)]
    for part in runs[0]:
        seconds = median(run[part] for run in runs)
        print(f"{seconds:7.1f} s {seconds / unit:9.0f} products  {part}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
