"""Precision and device of a model."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

import torch

from rebinding.models.errors import UnfitDevice

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Dtype: TypeAlias = Literal["float32", "bfloat16", "float16"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)

Device: TypeAlias = str | Mapping[str, str | int]
"""`auto`, a torch device, or accelerate's map from module paths to devices."""


def check_dtype(dtype: str) -> Dtype:
    """The dtype of a name; an error for anything else."""
    if dtype in DTYPES:
        return dtype
    aliases = {"fp32": "float32", "float": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16"}
    near = [aliases[dtype]] if dtype in aliases else difflib.get_close_matches(str(dtype), DTYPES, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise UnfitDevice(f"dtype {dtype!r} is none of {', '.join(DTYPES)}{hint}")


def torch_dtype(dtype: Dtype) -> torch.dtype:
    """The torch dtype of a name."""
    return cast(torch.dtype, getattr(torch, dtype))


def in_dtype(model: Any, dtype: Dtype) -> PreTrainedModel:
    """Convert a model's parameters to a dtype, in place. RoPE's frequencies are buffers, which the library keeps in
    float32 whatever the dtype; in 16 bits they would rotate late tokens by another angle."""
    for weight in model.parameters():
        weight.data = weight.data.to(torch_dtype(dtype))
    same: PreTrainedModel = model
    return same


def one_device(device: Device) -> torch.device:
    """A single device, for models that cannot be spread: `auto` is the first GPU if there is one."""
    if not isinstance(device, str):
        raise UnfitDevice(f"a map of devices, {dict(device)}, for a model that needs one device; name one device")
    if device == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    return _checked(device)


def device_map(device: Device) -> str | dict[str, str | int]:
    """The device map for accelerate: `auto` spreads over all GPUs, and is the CPU if there are none."""
    if not isinstance(device, str):
        for value in device.values():
            _checked(value)
        return dict(device)
    if device == "auto":
        return "auto" if torch.cuda.is_available() else {"": "cpu"}
    return {"": str(_checked(device))}


def _checked(name: str | int) -> torch.device:
    try:
        device = torch.device(f"cuda:{name}" if isinstance(name, int) else name)
    except RuntimeError:
        raise UnfitDevice(f"unknown device {name!r}: write auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda", "mps"):
        raise UnfitDevice(f"device {name!r}: models run on cpu, cuda or mps")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        raise UnfitDevice(
            f"device {name!r} is not available: PyTorch {torch.__version__} sees {count} CUDA devices. Use "
            "device='cpu', or install a CUDA build of PyTorch and check CUDA_VISIBLE_DEVICES"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UnfitDevice(f"device {name!r} is not available on this machine: use device='cpu'")
    return device
