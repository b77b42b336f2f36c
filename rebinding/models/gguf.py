"""A GGUF file as a subject: transformers computes the weights that its few bits stand for, and they are studied so.

Everything after loading is exact for those weights. They are not the weights that the file was made from, and a subject
says so (`Subject.weights`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, modeling_gguf_pytorch_utils

from rebinding.models.checkpoint import check_report, discreet
from rebinding.models.devices import Device, Dtype, device_map, torch_dtype
from rebinding.models.errors import DamagedWeights, MissingPackage, SlowTokenizer, UnsupportedArchitecture
from rebinding.models.gguf_header import header

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def check_gguf(path: Path) -> str:
    """Refuse a file that cannot be studied; what is returned says from which quantisation it is computed."""
    if find_spec("gguf") is None:
        raise MissingPackage(
            f"{path} is a GGUF file, which the package gguf reads: pip install -c constraints.txt -e '.[gguf]', or"
            " save the model as a folder on a machine that has it"
        )
    found = header(path)
    if found.facts.get("split.count", 1) > 1:
        raise DamagedWeights(
            f"{path} is one of {found.facts['split.count']} parts: join them first (llama-gguf-split --merge)"
        )
    return told(found.weights)


def told(weights: Any) -> str:
    """`dequantised from Q4_1 and Q8_0`: the types of two dimensions and more come first, by how many weights."""
    from gguf import GGMLQuantizationType

    whole = {"F32", "F16", "BF16", "F64"}
    names = [GGMLQuantizationType(kind).name for kind, _ in sorted(weights.items(), key=lambda item: -item[1])]
    short = [name for name in names if name not in whole]
    return f"dequantised from {' and '.join(short)}" if short else f"as stored in {' and '.join(names)}"


@discreet()
def open_gguf_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """The tokenizer that a GGUF file describes."""
    check_gguf(path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
    except (ValueError, KeyError, OSError, NotImplementedError) as error:
        raise UnsupportedArchitecture(
            f"transformers cannot make a tokenizer of {path} ({error}): {_otherwise()}"
        ) from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise SlowTokenizer(f"{path} gives no fast tokenizer, and roles are found by character offsets: {_otherwise()}")
    return tokenizer


@contextmanager
def _bar_on_a_terminal() -> Iterator[None]:
    """The bar of dequantisation, which transformers shows wherever its output goes, on a terminal only."""
    home: Any = modeling_gguf_pytorch_utils
    bar = home.tqdm
    home.tqdm = partial(bar, disable=None)
    try:
        yield
    finally:
        home.tqdm = bar


@discreet()
@_bar_on_a_terminal()
def open_gguf(path: Path, *, dtype: Dtype, device: Device) -> PreTrainedModel:
    """The model of a GGUF file that was checked, dequantised, on the library's eager attention."""
    read: Any = AutoModelForCausalLM.from_pretrained
    try:
        model, report = read(
            path.parent,
            gguf_file=path.name,
            dtype=torch_dtype(dtype),
            device_map=device_map(device),
            attn_implementation="eager",
            local_files_only=True,
            output_loading_info=True,
        )
    except (ValueError, KeyError, OSError, RuntimeError, NotImplementedError) as error:
        raise UnsupportedArchitecture(f"transformers cannot load {path} ({error}): {_otherwise()}") from error
    check_report(path, model, report)
    return _whole(model)


def _whole(model: Any) -> PreTrainedModel:
    """Take off the marks of a quantised model: what is left computes, and saves, as any other."""
    model.is_quantized, model.hf_quantizer, model.quantization_method = False, None, None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    loaded: PreTrainedModel = model.eval().requires_grad_(False)
    return loaded


def _otherwise() -> str:
    return "pass the folder of the model that it was made from"
