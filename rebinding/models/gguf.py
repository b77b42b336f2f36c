"""Load a GGUF file: transformers dequantises its weights.

Everything after loading is exact for those weights. They are not the weights that the file was made from;
`LoadedModel.weights` says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, modeling_gguf_pytorch_utils

from rebinding.models.checkpoint import check_report, quiet_transformers
from rebinding.models.devices import Device, Dtype, device_map, torch_dtype
from rebinding.models.errors import DamagedWeights, MissingPackage, SlowTokenizer, UnsupportedArchitecture
from rebinding.models.gguf_header import header

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def check_gguf(path: Path) -> str:
    """Refuse a file that cannot be studied; return a description of its quantisation."""
    if find_spec("gguf") is None:
        raise MissingPackage(
            f"{path} is a GGUF file, which the package gguf reads: pip install -c constraints.txt -e '.[gguf]', or"
            " save the model as a folder on a machine that has it"
        )
    parsed = header(path)
    if parsed.facts.get("split.count", 1) > 1:
        raise DamagedWeights(
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
        raise SlowTokenizer(f"{path} gives no fast tokenizer, and roles are found by character offsets: {_advice()}")
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
        raise UnsupportedArchitecture(f"transformers cannot load {path} ({error}): {_advice()}") from error
    check_report(path, model, report)
    return _without_quantiser(model)


def _without_quantiser(model: Any) -> PreTrainedModel:
    """Remove the marks of a quantised model, so that it computes and saves like any other."""
    model.is_quantized, model.hf_quantizer, model.quantization_method = False, None, None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    loaded: PreTrainedModel = model.eval().requires_grad_(False)
    return loaded


def _advice() -> str:
    return "pass the folder of the model that it was made from"
