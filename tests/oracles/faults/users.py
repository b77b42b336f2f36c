"""Switch to an ordinary user: permissions do not stop an administrator, and tests in containers often run as one."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

OVERRIDE = 0b110
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: with these a file is opened whatever its permissions are."""
VERSION = 0x20080522
"""Of the kernel's call: two sets of 32 capabilities each."""


class Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("thread", ctypes.c_int))


class Half(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable"))


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Be bound by permissions for the length of a block, where this is run by the administrator.

    Not by becoming somebody else: the library's own files must stay readable, and they may lie in a folder that is
    closed to everybody else. So the thread lays down the capabilities that make permissions meaningless.
    """
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = Header(VERSION, 0), (Half * 2)()
    _exit_with(libc.capget(ctypes.byref(header), data))
    effective = data[0].effective
    data[0].effective = effective & ~OVERRIDE
    _exit_with(libc.capset(ctypes.byref(header), data))
    try:
        yield
    finally:
        data[0].effective = effective
        _exit_with(libc.capset(ctypes.byref(header), data))


def _exit_with(status: int) -> None:
    if status:
        raise OSError(ctypes.get_errno(), "the capabilities of this thread cannot be read or changed")
