"""A worker that keeps what it frees has it again without asking the system for every page."""

from __future__ import annotations

import platform
import resource
import subprocess
import sys

import pytest

TIMES, BYTES = 8, 2**26
NO_HUGE_PAGES = 41
"""Of `prctl`: where the system gives huge pages unasked, there would be next to nothing to count."""
CODE = f"""
import ctypes, resource, sys, torch
from rebinding.engines.on_ray import keep_memory
if sys.platform == "linux":
    ctypes.CDLL(None).prctl({NO_HUGE_PAGES}, 1, 0, 0, 0)
if sys.argv[1] == "kept":
    keep_memory()
for _ in range(2):
    torch.ones({BYTES // 4})
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({TIMES}):
    torch.ones({BYTES // 4})
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def asked_for(how: str) -> int:
    """Pages that a process is given for tensors of the same size, one after the other."""
    found = subprocess.run([sys.executable, "-c", CODE, how], capture_output=True, text=True, check=True)
    return int(found.stdout)


@pytest.mark.slow
def test_memory_is_had_once() -> None:
    """Where the C library is glibc; another one does what it did. Once more it may be had behind something small that
    came to lie in between."""
    pages = TIMES * BYTES // resource.getpagesize()
    kept = asked_for("kept")
    if platform.libc_ver()[0] == "glibc":
        assert kept <= pages / 4
        assert asked_for("let go") > pages / 2  # else the test would see nothing
