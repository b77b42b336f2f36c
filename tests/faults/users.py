"""An ordinary user: to the administrator permissions mean nothing, and tests in a container are often run as one."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def ordinary_user(*owned: Path) -> Iterator[None]:
    """Be nobody for the length of a block, and the owner of some folders, where this is run by the administrator."""
    if os.geteuid() != 0:
        yield
        return
    for folder in owned:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that every user can go into; pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="rebinding-faults-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
