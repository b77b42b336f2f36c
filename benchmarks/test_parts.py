"""The README's first command and all rows, cold and warm: seconds by part, and as multiples of a fixed matrix product.

Seconds say something of one machine. Divided by what a product of two 1024 x 1024 matrices takes there, they can be
held against another's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

import pytest
import torch

from benchmarks.parts import VARIABLE

ROOT = Path(__file__).parents[1]
SIZE, REPEATS = 1024, 30


def product_seconds() -> float:
    """What one fixed product takes here, median of many."""
    a, b = torch.ones(2, SIZE, SIZE)
    seconds = []
    for _ in range(REPEATS):
        begin = perf_counter()
        _ = a @ b
        seconds.append(perf_counter() - begin)
    return median(seconds)


def run(options: tuple[str, ...], store: Path, report: Path, parts_file: Path) -> tuple[float, dict[str, float]]:
    """Seconds of the whole process, and by part, without workers: parts are those of one process."""
    arguments = ("claims", *options, "-q", "-p", "no:cacheprovider", "-p", "benchmarks.parts")
    command = [sys.executable, "-m", "pytest", *arguments]
    begin = perf_counter()
    result = subprocess.run(
        [*command, "--store", str(store), "--report", str(report)],
        cwd=ROOT,
        env=os.environ | {VARIABLE: str(parts_file)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-2000:]
    return perf_counter() - begin, json.loads(parts_file.read_text())


@pytest.mark.parametrize("options", [("-m", "headline"), ()], ids=["first command", "all rows"])
def test_parts(options: tuple[str, ...], tmp_path: Path) -> None:
    unit = product_seconds()
    print(f"\none product of {SIZE} x {SIZE} matrices: {unit * 1e3:.1f} ms")
    for name in ("cold", "warm"):
        full, parts = run(options, tmp_path / "store", tmp_path / "report", tmp_path / "parts.json")
        print(f"{name}: {full:.1f} s, {full / unit:.0f} products")
        for part, seconds in sorted(parts.items(), key=lambda item: -item[1]):
            print(f"  {part:12} {seconds:6.1f} s {seconds / unit:7.0f} products {seconds / full:5.0%}")
        assert sum(parts.values()) < full * 1.02  # a part counted twice would show
