"""Run whole commands that are interrupted at given moments."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


def run_at_moments(folder: Path, name: str, act: str, moments: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What a process of its own saw of runs to which something happened."""
    command = [sys.executable, "-m", "tests.oracles.faults.interrupted_commands", str(folder), name, act, *moments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    outcomes: dict[str, dict[str, Any]] = json.loads(result.stdout)
    return outcomes
