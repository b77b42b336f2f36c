"""Waiting times of a newcomer and a contributor, by part.

    python -m benchmarks.minutes [REPEATS]        # .ci/run in a fresh clone: installation, first command, tox
    python -m benchmarks.minutes --profile        # the first command in one process, cold and warm, by part
    python -m benchmarks.minutes --profile all    # all rows

Seconds say something of one machine; each is shown as a multiple of one product of two 1024 x 1024 matrices too. The
floor of a part is what its own matrix products would take at the speed of that product.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from benchmarks.parts import FLOOR, VARIABLE

ROOT = Path(__file__).parents[1]
CHECK = re.compile(r"^\s+(\w+): (OK|FAIL\b.*?) \((?P<seconds>[\d.]+)=")
"""A line of the summary that tox prints."""
COMMAND = "+ "
"""How `.ci/run` announces a command of the README."""
SIZE, REPEATS = 1024, 30
ROWS = {"first": ("-m", "headline"), "all": ()}
"""Options of pytest that choose rows."""


def product_seconds() -> float:
    """Seconds of one fixed product on this machine, median of many."""
    a, b = torch.ones(2, SIZE, SIZE)
    seconds = []
    for _ in range(REPEATS):
        begin = perf_counter()
        _ = a @ b
        seconds.append(perf_counter() - begin)
    return median(seconds)


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


def run_claims(rows: str, folder: Path, **variables: str) -> dict[str, dict[str, float]]:
    """The seconds and the operations of one run by part, in one process on one thread: parts are those of a process."""
    arguments = ("claims", *ROWS[rows], "-q", "-p", "no:cacheprovider", "-p", "benchmarks.parts")
    own = {VARIABLE: str(folder / "parts.json"), "OMP_NUM_THREADS": "1", **variables}
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, "--store", folder / "store", "--report", folder / "report"],
        cwd=ROOT,
        env=os.environ | own,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise SystemExit(result.stdout[-2000:] + result.stderr[-2000:])
    measured: dict[str, dict[str, float]] = json.loads((folder / "parts.json").read_text())
    return measured


def profile(rows: str) -> Iterator[str]:
    """The parts of a run with an empty store, their floors, and their seconds with a full one."""
    torch.set_num_threads(1)
    unit = product_seconds()
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        cold, warm = (run_claims(rows, Path(first))["seconds"] for _ in range(2))
        operations = run_claims(rows, Path(second), **{FLOOR: "1"})["operations"]
    floor = {part: count / (2 * SIZE**3) for part, count in operations.items()}  # in products
    yield f"one product of {SIZE} x {SIZE} matrices: {unit * 1e3:.1f} ms; one process, one thread"
    yield f"{'s cold':>8} {'products':>9} {'floor':>6} {'s warm':>7}  part"
    for values in (cold, floor, warm):
        values["all"] = sum(values.values())
    for part in sorted(cold, key=lambda part: (part == "all", -cold[part])):
        least, stored = floor.get(part, 0.0), warm.get(part, 0.0)
        yield f"{cold[part]:8.1f} {cold[part] / unit:9.0f} {least:6.0f} {stored:7.1f}  {part}"


def main(repeats: int) -> None:
    unit = product_seconds()
    print(f"one product of 1024 x 1024 matrices: {unit * 1e3:.1f} ms; {os.cpu_count()} cores; median of {repeats}")
    runs = [measure() for _ in range(repeats)]
    for part in runs[0]:
        seconds = median(run[part] for run in runs)
        print(f"{seconds:7.1f} s {seconds / unit:9.0f} products  {part}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("repeats", type=int, nargs="?", default=1)
    parser.add_argument("--profile", choices=ROWS, nargs="?", const="first")
    options = parser.parse_args()
    if options.profile is None:
        main(options.repeats)
    else:
        print("\n".join(profile(options.profile)))
