"""A worker that keeps freed memory reuses it without new pages from the system."""

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


def count_new_pages(mode: str) -> int:
    """New pages of a process for tensors of the same size, one after the other."""
    process = subprocess.run([sys.executable, "-c", CODE, mode], capture_output=True, text=True, check=True)
    return int(process.stdout)


@pytest.mark.slow
def test_freed_memory_is_reused() -> None:
    """With glibc; other C libraries are not changed. A small block in between may cost one more allocation."""
    pages = TIMES * BYTES // resource.getpagesize()
    new_pages = count_new_pages("kept")
    if platform.libc_ver()[0] == "glibc":
        assert new_pages <= pages / 4
        assert count_new_pages("let go") > pages / 2  # else the test would show nothing
