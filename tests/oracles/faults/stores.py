"""Stores for faults: a run that costs nothing to compute, its files, and a user without privileges."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pandas as pd

from rebinding.evidence import Evidence, merge
from rebinding.evidence.store import Store, cache_key

BLOCKS = 40
SUFFIXES = (".parquet", ".safetensors", ".txt")
OVERRIDE = 0b110
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: with these a file is opened whatever its permissions are."""
VERSION = 0x20080522
"""Of the kernel's call: two sets of 32 capabilities each."""


def blocks(root: Path, count: int = BLOCKS, computed: list[int] | None = None) -> Evidence:
    """Roots of numbers, a shard each; `computed` gets those that were computed."""

    def compute(item: int) -> Evidence:
        if computed is not None:
            computed.append(item)
        return Evidence("toy", pd.DataFrame({"item": [item], "root": [item**0.5]}), {})

    store, keys = Store(root), [cache_key("toy", "float32", "", [str(item)]) for item in range(count)]
    return merge([store.remember(Evidence, "toy", key, partial(compute, item)) for item, key in enumerate(keys)])


def shards(root: Path, *suffixes: str) -> list[Path]:
    """The shards of a store, in an order that does not depend on the disk."""
    return sorted(path for path in root.rglob("*") if path.suffix in (suffixes or SUFFIXES))


def content(root: Path) -> dict[str, bytes]:
    """Every file of a store, but for locks, which are empty and stay, and for what had to make room."""
    files = (path for path in root.rglob("*") if path.is_file() and path.suffix != ".lock")
    paths = (path for path in files if not any(part.endswith(".aside") for part in path.parts))
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


class Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("thread", ctypes.c_int))


class Half(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable"))


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Be bound by permissions for the length of a block; tests in containers often run as the administrator.

    Not by becoming somebody else: the library's own files must stay readable, and they may lie in a folder that is
    closed to everybody else. So the thread lays down the capabilities that make permissions meaningless.
    """
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = Header(VERSION, 0), (Half * 2)()

    def call(function: str) -> None:
        if getattr(libc, function)(ctypes.byref(header), data):
            raise OSError(ctypes.get_errno(), "the capabilities of this thread cannot be read or changed")

    call("capget")
    effective = data[0].effective
    data[0].effective = effective & ~OVERRIDE
    call("capset")
    try:
        yield
    finally:
        data[0].effective = effective
        call("capset")
