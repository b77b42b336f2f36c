"""Another processor's rounding, on this one: matrix products and softmax whose last bits are moved on purpose.

Kernels round by the order in which they sum, and that order follows from shape, layout, instruction set and threads. So
a test may rely on two calls with the same shapes, strides and alignment giving the same bits, and on nothing else. Here
every product and every softmax on the CPU is multiplied, entry by entry, by 1 + k eps with |k| <= `ULPS`, where the k
are drawn from a hash of (seed, operation, shapes, strides, alignment): the same call gives the same numbers; another
batch size, another layout, or weights read from a file give others. An exact zero stays one: no kernel makes a sum of
zeros anything else. In 16 bits |k| <= 1: kernels sum in 32 bits there and round once.

The kernels are exchanged below autograd and below every library (`torch.library`, for the dispatch key of the CPU), so
nothing in the process can go around them. `linear`, `matmul` and `einsum` end in the kernels named here.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.library import Library, get_kernel

ULPS = 4
"""Units in the last place. Two orders of summation of 256 terms differ by about sqrt(256) / 4 of them."""

KERNELS = (
    *("mm", "addmm", "bmm", "baddbmm", "addbmm", "addmv", "dot", "_softmax", "_log_softmax"),
    *("mm.out", "addmm.out", "bmm.out", "baddbmm.out", "addmv.out", "_softmax.out"),
    *("addmm_", "baddbmm_", "addmv_", "_scaled_dot_product_flash_attention_for_cpu"),
)
ALIGNED = 64
"""Bytes to which PyTorch aligns what it allocates. Weights mapped from a file stand at other addresses."""
ACTIVE: list[int] = []
"""The seeds under which this process rounds at the moment."""
POOL = 1 << 23
"""Factors drawn beforehand, of which every call takes a stretch."""


@contextmanager
def rounding(seed: int, ulps: int = ULPS) -> Iterator[None]:
    """Within this context products and softmaxes round as some other processor would: one that `seed` names."""
    overridden = Library("aten", "IMPL")
    ACTIVE.append(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that kernels are overridden, which is the purpose
        for name in KERNELS:
            kernel = _perturbed(name, get_kernel(f"aten::{name}", "CPU").call_boxed, seed, ulps)
            overridden.impl(name, kernel, "CPU", with_keyset=True, allow_override=True)
    try:
        yield
    finally:
        ACTIVE.remove(seed)
        overridden._destroy()


def _perturbed(name: str, kernel: Callable[..., Any], seed: int, ulps: int) -> Callable[..., Any]:
    def call(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        output = kernel(keyset, *args, **kwargs)
        first: Tensor = output[0] if isinstance(output, tuple) else output
        layout = [_layout(value) for value in args if isinstance(value, Tensor)]
        _move(first, f"{seed} {name} {layout}", ulps)
        return output

    return call


def _layout(tensor: Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int, str]:
    return tuple(tensor.shape), tensor.stride(), tensor.data_ptr() % ALIGNED, str(tensor.dtype)


def _move(value: Tensor, operation: str, ulps: int) -> None:
    if not value.is_floating_point() or value.numel() == 0:
        return
    span = min(value.numel(), POOL)
    start = int.from_bytes(hashlib.blake2b(operation.encode(), digest_size=4).digest(), "big") % (POOL - span + 1)
    factors = _factors(value.dtype, ulps)[start : start + span]
    if span < value.numel():
        factors = factors.repeat(value.numel() // span + 1)[: value.numel()]
    value.mul_(factors.view(value.shape))


@cache
def _factors(dtype: torch.dtype, ulps: int) -> Tensor:
    dice = torch.Generator().manual_seed(0)
    limit = ulps if dtype.itemsize > 2 else min(ulps, 1)
    units = torch.randint(-limit, limit + 1, (POOL,), generator=dice)
    return (1.0 + units.double() * torch.finfo(dtype).eps).to(dtype)
