"""Render untrusted text in a child process with limits on time and memory.

A chat template is a program. The sandbox of Jinja keeps it from files and from Python's internals, but not from endless
loops or from doubling a text sixty times; and no signal interrupts C code such as 9 ** 9 ** 9. So a fork renders it,
and is killed when it takes too long. On systems without fork it is rendered in this process.
"""

from __future__ import annotations

import os
import select
import signal
import time
import warnings
from collections.abc import Callable

SECONDS = 5
"""Processor time limit of a template; ordinary ones take milliseconds."""
PATIENCE = 60.0
"""Wall-clock limit in seconds, for a busy machine."""
MEMORY = 1 << 30
"""Bytes of memory that it may take besides those of this process."""
LONGEST = 1 << 20
"""Length limit of the text in bytes."""
DONE, FAILED = b"+", b"-"


class Unbounded(ValueError):
    """Text that took too long, too much memory, or is too long itself."""


class Failed(ValueError):
    """An error while rendering; the message is that of the error."""


def bounded(make: Callable[[], str]) -> str:
    """The result of `make`, run in a child process; its side effects are not visible here."""
    if not hasattr(os, "fork"):
        return make()
    out, into = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # warns of threads; the child runs only Python code, and ends
        child = os.fork()
    if child == 0:
        _be_child(make, into)
    os.close(into)
    try:
        reply = _read(out)
    finally:
        os.close(out)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if reply[:1] == FAILED:
        raise Failed(reply[1:].decode(errors="replace"))
    if reply[:1] != DONE:
        raise Unbounded(f"it took more than {SECONDS} s, more than {MEMORY >> 20} MB, or ended the process")
    return reply[1:].decode()


def _be_child(make: Callable[[], str], into: int) -> None:
    """Make the text, write it, and exit without cleaning up anything of the parent."""
    try:
        limit(SECONDS)
        try:
            reply = DONE + make().encode()
        except MemoryError:
            reply = b""
        except Exception as error:
            reply = FAILED + str(error).encode(errors="replace")[:1000]
        with os.fdopen(into, "wb") as file:
            file.write(reply)
    finally:
        os._exit(0)


def limit(seconds: int) -> None:
    """Let the kernel limit the processor time and the memory of this process."""
    import resource

    def at_most(kind: int, amount: int) -> None:
        most = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (amount if most == resource.RLIM_INFINITY else min(amount, most), most))

    at_most(resource.RLIMIT_CPU, seconds)
    if os.path.exists("/proc/self/statm"):
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        at_most(resource.RLIMIT_AS, pages * resource.getpagesize() + MEMORY)


def _read(out: int) -> bytes:
    """The output of the child; empty if it does not end in time."""
    deadline, content = time.monotonic() + PATIENCE, b""
    while select.select([out], [], [], max(0.0, deadline - time.monotonic()))[0]:
        piece = os.read(out, 1 << 16)
        if not piece:
            return content
        content += piece
        if len(content) > LONGEST:
            raise Unbounded(f"it is longer than {LONGEST >> 20} MB")
    return b""
