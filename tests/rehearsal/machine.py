"""A plugin of pytest for the rehearsal: the machine says that it has a GPU, and models are loaded on the CPU.

That a run is right on a device of its own is tested in tests/accelerator. The Hub's client keeps what it received in
small pieces, so that small files can be cut in the middle. With the variable `FREE` the disk has so many bytes free.
"""

from __future__ import annotations

import os
import shutil
from typing import Any, NamedTuple

import huggingface_hub.constants
import pytest

MEMORY = int(80e9)


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def pytest_sessionstart(session: pytest.Session) -> None:
    from fixtures import preflight  # pytest has rewritten its assertions by now

    preflight.gpu_memory = lambda: MEMORY
    huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE = 1 << 14
    if "FREE" in os.environ:
        usage: Any = Usage(total=1 << 30, used=0, free=int(os.environ["FREE"]))
        shutil.disk_usage = lambda path: usage
