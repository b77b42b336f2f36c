"""Load a GGUF file: its header is checked here, and transformers dequantises its weights.

Everything after loading is exact for those weights. They are not the weights that the file was made from;
`LoadedModel.weights` says so.

A GGUF file begins with `GGUF`, a version, the number of tensors and the number of facts; then the facts, each a name, a
type and a value; then for each tensor its name, shape, type and offset. All numbers are little-endian.

The header is read here and not by `gguf.GGUFReader`, which reads it entry by entry: half a minute for a vocabulary of
150,000 where this takes half a second, and without end for a file of 50 bytes that announces 2 ** 60 numbers.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from transformers import AutoTokenizer, PreTrainedTokenizerFast, modeling_gguf_pytorch_utils

from rebinding.models.checkpoint import check_report, quiet_transformers, read_weights
from rebinding.models.devices import Device, Dtype
from rebinding.models.errors import DamagedModel, UnfitTokenizer, UnsupportedArchitecture, UnsupportedFormat

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MAGIC = b"GGUF"
VERSIONS = (2, 3)
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""The struct code of a number, by its type."""
STRING, ARRAY = 8, 9
MAX_COUNT = 10_000_000
"""More facts, tensors or letters than any model has; a larger count is refused."""


def check_gguf(path: Path) -> str:
    """Refuse a file that cannot be studied; return a description of its quantisation."""
    if find_spec("gguf") is None:
        raise UnsupportedFormat(
            f"{path} is a GGUF file, which the package gguf reads: pip install 'rebinding[gguf]' (in a clone:"
            " -e '.[gguf]'), or save the model as a folder on a machine that has it"
        )
    parsed = header(path)
    if parsed.facts.get("split.count", 1) > 1:
        raise DamagedModel(
            f"{path} is one of {parsed.facts['split.count']} parts: join them first (llama-gguf-split --merge)"
        )
    return describe_weights(parsed.weights)


def describe_weights(weights: Any) -> str:
    """`dequantised from Q4_1 and Q8_0`: the stored types, the one with most weights first."""
    from gguf import GGMLQuantizationType

    unquantised = {"F32", "F16", "BF16", "F64"}
    names = [GGMLQuantizationType(kind).name for kind, _ in sorted(weights.items(), key=lambda item: -item[1])]
    quantised = [name for name in names if name not in unquantised]
    return f"dequantised from {' and '.join(quantised)}" if quantised else f"as stored in {' and '.join(names)}"


@quiet_transformers()
def open_gguf_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """The tokenizer that a GGUF file describes."""
    check_gguf(path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
    except (ValueError, KeyError, OSError, NotImplementedError) as error:
        raise UnsupportedArchitecture(
            f"transformers cannot make a tokenizer of {path} ({error}): {_advice()}"
        ) from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise UnfitTokenizer(f"{path} gives no fast tokenizer, and roles are found by character offsets: {_advice()}")
    return tokenizer


@contextmanager
def _bar_on_a_terminal() -> Iterator[None]:
    """Show the progress bar of dequantisation on a terminal only; transformers always shows it."""
    module: Any = modeling_gguf_pytorch_utils
    bar = module.tqdm
    module.tqdm = partial(bar, disable=None)
    try:
        yield
    finally:
        module.tqdm = bar


@quiet_transformers()
@_bar_on_a_terminal()
def open_gguf(path: Path, *, dtype: Dtype, device: Device) -> PreTrainedModel:
    """The dequantised model of a checked GGUF file, on the library's eager attention."""
    try:
        model, report = read_weights(path.parent, dtype, device, gguf_file=path.name)
    except (ValueError, KeyError, OSError, RuntimeError, NotImplementedError) as error:
        raise UnsupportedArchitecture(f"transformers cannot load {path} ({error}): {_advice()}") from error
    check_report(path, model, report)
    _align(model)
    return _without_quantiser(model)


ALIGNED = 64
"""Bytes to which PyTorch aligns what it allocates."""


def _align(model: PreTrainedModel) -> None:
    """Move weights to where PyTorch would have put them. What numpy dequantised lies at other addresses in every
    process; kernels may sum in another order there, and the same training would give another adapter."""
    for weight in (*model.parameters(), *model.buffers()):
        if weight.data_ptr() % ALIGNED:
            weight.data = weight.data.clone()


def _without_quantiser(model: Any) -> PreTrainedModel:
    """Remove the marks of a quantised model, so that it computes and saves like any other."""
    model.is_quantized, model.hf_quantizer, model.quantization_method = False, None, None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    unmarked: PreTrainedModel = model
    return unmarked


def _advice() -> str:
    return "pass the folder of the model that it was made from"


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
        raise DamagedModel(
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
    if count > MAX_COUNT:
        raise _Malformed(f"a count of {count}")
    return count


def _string(file: BinaryIO) -> str:
    return file.read(_count(file)).decode("utf-8")
