"""Read the header of a GGUF file, in milliseconds and without another package.

A GGUF file begins with `GGUF`, a version, the number of tensors and the number of facts; then the facts, each a name, a
type and a value; then for each tensor its name, shape, type and offset. All numbers are little-endian.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from rebinding.models.errors import DamagedWeights

MAGIC = b"GGUF"
VERSIONS = (2, 3)
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""The struct code of a number, by its type."""
STRING, ARRAY = 8, 9
MOST = 10_000_000
"""More facts, tensors or letters than any model has; a larger count is refused."""


@dataclass(frozen=True)
class Header:
    """The facts that are numbers or strings, and how many weights are stored in each type (by the type's number)."""

    facts: Mapping[str, Any]
    weights: Mapping[int, int]


def header(path: Path) -> Header:
    """Read the header of a file; a file that is no GGUF, or ends within the header, is refused."""
    try:
        with path.open("rb") as file:
            return _header(file)
    except (struct.error, UnicodeDecodeError, RecursionError, _Malformed) as error:
        raise DamagedWeights(
            f"{path} ({path.stat().st_size} bytes) is no GGUF file or is cut short ({error}): fetch it again. A file of"
            " some hundred bytes is a pointer that `git lfs pull` replaces."
        ) from error


class _Malformed(Exception):
    """Content that no GGUF file has."""


def _header(file: BinaryIO) -> Header:
    magic = file.read(4)
    if magic != MAGIC:
        raise _Malformed(f"it begins with {magic!r} and not with {MAGIC!r}")
    version = _number(file, "I")
    if version not in VERSIONS:
        raise _Malformed(f"version {version}; versions {' and '.join(map(str, VERSIONS))} are read")
    tensors, count = _count(file), _count(file)
    facts = {}
    for _ in range(count):
        name = _string(file)
        facts[name] = _value(file, _number(file, "I"))
    weights: Counter[int] = Counter()
    for _ in range(tensors):
        _string(file)
        size = 1
        for _ in range(_number(file, "I")):
            size *= _number(file, "Q")
        weights[_number(file, "I")] += size
        _number(file, "Q")
    return Header(facts, weights)


def _value(file: BinaryIO, kind: int) -> Any:
    """A value; of an array only its length, since only the tokenizer needs the entries."""
    if kind == STRING:
        return _string(file)
    if kind in NUMBERS:
        return _number(file, NUMBERS[kind])
    if kind != ARRAY:
        raise _Malformed(f"a value of the unknown type {kind}")
    inner, length = _number(file, "I"), _count(file)
    if inner in NUMBERS:
        file.seek(length * struct.calcsize(NUMBERS[inner]), 1)
        return length
    for _ in range(length):
        _value(file, inner)
    return length


def _number(file: BinaryIO, code: str) -> Any:
    code = f"<{code}"
    return struct.unpack(code, file.read(struct.calcsize(code)))[0]


def _count(file: BinaryIO) -> int:
    count = int(_number(file, "Q"))
    if count > MOST:
        raise _Malformed(f"a count of {count}")
    return count


def _string(file: BinaryIO) -> str:
    return file.read(_count(file)).decode("utf-8")
