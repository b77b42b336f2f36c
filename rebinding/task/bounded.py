"""Text that a stranger's code makes, in a process of its own that may use little time and memory.

A chat template is a program. The sandbox of Jinja keeps it from files and from Python's insides, and not from looping
for ever or from doubling a text sixty times; and what C computes, such as 9 ** 9 ** 9, no signal interrupts. So a fork
renders it, and is killed when it takes too long. Where there are no forks it is rendered here.
"""

from __future__ import annotations

import os
import select
import signal
import time
import warnings
from collections.abc import Callable

SECONDS = 5
"""Of the processor, that a template takes at the most; ordinary ones take milliseconds."""
PATIENCE = 60.0
"""Seconds by the clock, on a machine with other things to do."""
MEMORY = 1 << 30
"""Bytes that it may take beside those that this process has."""
LONGEST = 1 << 20
"""Bytes of the text."""
DONE, FAILED = b"+", b"-"


class Unbounded(ValueError):
    """Text that took too long, too much memory, or is too long itself."""


class Failed(ValueError):
    """Text that could not be made; the message is that of the error."""


def bounded(make: Callable[[], str]) -> str:
    """What `make` gives; nothing else that it does, to variables or modules, is seen here."""
    if not hasattr(os, "fork"):
        return make()
    out, into = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forks of threads: this one runs Python alone, and ends
        child = os.fork()
    if child == 0:
        _be_child(make, into)
    os.close(into)
    try:
        told = _read(out)
    finally:
        os.close(out)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if told[:1] == FAILED:
        raise Failed(told[1:].decode(errors="replace"))
    if told[:1] != DONE:
        raise Unbounded(f"it took more than {SECONDS} s, more than {MEMORY >> 20} MB, or ended the process")
    return told[1:].decode()


def _be_child(make: Callable[[], str], into: int) -> None:
    """Make the text, write it, and be gone: nothing that belongs to the parent may be tidied up."""
    try:
        limit(SECONDS)
        try:
            told = DONE + make().encode()
        except MemoryError:
            told = b""
        except Exception as error:
            told = FAILED + str(error).encode(errors="replace")[:1000]
        with os.fdopen(into, "wb") as file:
            file.write(told)
    finally:
        os._exit(0)


def limit(seconds: int) -> None:
    """Let the kernel end this process when it takes too much, and refuse it more memory than that."""
    import resource

    def at_most(what: int, amount: int) -> None:
        most = resource.getrlimit(what)[1]
        resource.setrlimit(what, (amount if most == resource.RLIM_INFINITY else min(amount, most), most))

    at_most(resource.RLIMIT_CPU, seconds)
    if os.path.exists("/proc/self/statm"):
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        at_most(resource.RLIMIT_AS, pages * resource.getpagesize() + MEMORY)


def _read(out: int) -> bytes:
    """What the child writes until it ends; nothing, if it does not end in time."""
    until, found = time.monotonic() + PATIENCE, b""
    while select.select([out], [], [], max(0.0, until - time.monotonic()))[0]:
        piece = os.read(out, 1 << 16)
        if not piece:
            return found
        found += piece
        if len(found) > LONGEST:
            raise Unbounded(f"it is longer than {LONGEST >> 20} MB")
    return b""
