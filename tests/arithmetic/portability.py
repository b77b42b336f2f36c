"""The tests under other arithmetic, one run a cell: `python -m tests.arithmetic.portability`, then `[CELL ...]` and
`[-- PYTEST ARGUMENTS]`.

A cell is another choice of kernels that this machine can make, or another processor's rounding (`rounding.py`).
Prints a table in Markdown as the cells come in, and what failed; exits with 1 if any cell is red. Without arguments
every cell that this machine has runs `pytest tests -n 2 --dist worksteal -q`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEFAULT = ("tests", "-n", "2", "--dist", "worksteal")
VARIABLES = ("MKL_CBWR", "ATEN_CPU_CAPABILITY", "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "PYTEST_ADDOPTS")
"""What a cell sets; what the caller had set of them is left out, so that `plain` is plain."""

SHARED = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Two processes of two threads on two cores: threads that wait would otherwise spin where the others want to compute,
and the same products took 46 s in place of 7."""

CELLS: Mapping[str, Mapping[str, str]] = {
    "plain": {},
    "MKL_CBWR=COMPATIBLE": {"MKL_CBWR": "COMPATIBLE"},
    "MKL_CBWR=AVX2": {"MKL_CBWR": "AVX2"},
    "ATEN_CPU_CAPABILITY=default": {"ATEN_CPU_CAPABILITY": "default"},
    "ATEN_CPU_CAPABILITY=avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "OMP_NUM_THREADS=1": {"OMP_NUM_THREADS": "1"},
    "OMP_NUM_THREADS=2": {"OMP_NUM_THREADS": "2", **SHARED},
    **{f"--rounding {seed}": {"PYTEST_ADDOPTS": f"--rounding {seed}"} for seed in (1, 2, 3)},
}


@dataclass(frozen=True)
class Result:
    """What one run came to."""

    passed: int
    failed: int
    seconds: float
    wrong: tuple[str, ...]
    green: bool


def run(cell: str, arguments: Sequence[str]) -> Result:
    """One pytest in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environment |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **CELLS[cell]}
    command = [sys.executable, "-m", "pytest", *arguments, "-q", "--tb=line", "-p", "no:cacheprovider"]
    start = time.perf_counter()
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    *rest, last = result.stdout.strip().splitlines() or [result.stderr]
    wrong = tuple(line for line in rest if line.startswith(("FAILED", "SUBFAILED", "ERROR")))
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error)", last)}
    failed = counts.get("failed", 0) + counts.get("error", 0)
    seconds = time.perf_counter() - start
    return Result(counts.get("passed", 0), failed, seconds, wrong or (last,), result.returncode == 0)


def available(cell: str) -> bool:
    """Whether this processor has the instructions that a cell names."""
    processor = Path("/proc/cpuinfo")
    return "avx2" not in cell.lower() or not processor.is_file() or " avx2 " in processor.read_text()


def main(argv: Sequence[str]) -> int:
    """Run the cells that are named, all by default."""
    cut = list(argv).index("--") if "--" in argv else len(argv)
    cells, arguments = argv[:cut] or [cell for cell in CELLS if available(cell)], argv[cut + 1 :] or DEFAULT
    unknown = [cell for cell in cells if cell not in CELLS]
    if unknown:
        print(f"no cell {', '.join(map(repr, unknown))}; there are {', '.join(map(repr, CELLS))}")
        return 2
    print("| cell | passed | failed | seconds |\n| --- | ---: | ---: | ---: |", flush=True)
    red: dict[str, Result] = {}
    for cell in cells:
        outcome = run(cell, arguments)
        print(f"| `{cell}` | {outcome.passed} | {outcome.failed} | {outcome.seconds:.0f} |", flush=True)
        red |= {} if outcome.green else {cell: outcome}
    for cell, outcome in red.items():
        print(f"\n`{cell}` is red:", *outcome.wrong, sep="\n")
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
