"""Whole commands to which something happens, as a test asks for them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


def tried(folder: Path, name: str, act: str, wanted: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What a process of its own saw of runs to which something happened."""
    command = [sys.executable, "-m", "tests.oracles.faults.interrupted_commands", str(folder), name, act, *wanted]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found
