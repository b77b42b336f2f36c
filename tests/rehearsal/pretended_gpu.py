"""A plugin of pytest for the rehearsal: the machine says that it has a GPU, and models are loaded on the CPU.

That a run is right on a device of its own is tested in tests/accelerator. The Hub's client keeps what it received in
small pieces, so that small files can be cut in the middle.
"""

from __future__ import annotations

import huggingface_hub.constants
import pytest

MEMORY = int(80e9)


def pytest_sessionstart(session: pytest.Session) -> None:
    from fixtures import preflight  # pytest has rewritten its assertions by now

    preflight.gpu_memory = lambda: MEMORY
    huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE = 1 << 14
