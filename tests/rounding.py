"""Another processor's rounding, on this one: matrix products and softmax whose last bits are moved on purpose.

Kernels round by the order in which they sum, and that order follows from shape, layout, instruction set and threads. So
a test may rely on two calls with the same shapes and strides giving the same bits, and on nothing else. Here every
product and every softmax on the CPU is multiplied, entry by entry, by 1 + k eps with |k| <= `ULPS`, where the k are
drawn from a hash of (seed, operation, shapes, strides): the same call gives the same numbers, another batch size or
layout gives others. An exact zero stays one: no kernel makes a sum of zeros anything else.

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
POOL = 1 << 22
"""Factors drawn beforehand, of which every call takes a stretch."""


@contextmanager
def rounding(seed: int, ulps: int = ULPS) -> Iterator[None]:
    """Within this context products and softmaxes round as some other processor would: one that `seed` names."""
    overridden = Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that kernels are overridden, which is the purpose
        for name in KERNELS:
            kernel = _perturbed(name, get_kernel(f"aten::{name}", "CPU").call_boxed, seed, ulps)
            overridden.impl(name, kernel, "CPU", with_keyset=True, allow_override=True)
    try:
        yield
    finally:
        overridden._destroy()


def _perturbed(name: str, kernel: Callable[..., Any], seed: int, ulps: int) -> Callable[..., Any]:
    def call(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        made = kernel(keyset, *args, **kwargs)
        first: Tensor = made[0] if isinstance(made, tuple) else made
        layout = [(tuple(one.shape), one.stride(), str(one.dtype)) for one in args if isinstance(one, Tensor)]
        _move(first, f"{seed} {name} {layout}", ulps)
        return made

    return call


def _move(value: Tensor, what: str, ulps: int) -> None:
    if not value.is_floating_point() or value.numel() == 0:
        return
    start = int.from_bytes(hashlib.blake2b(what.encode(), digest_size=4).digest(), "big") % POOL
    factors = _factors(value.dtype, ulps)
    if start + value.numel() > POOL:
        factors = factors.repeat(value.numel() // POOL + 2)
    value.mul_(factors[start : start + value.numel()].view(value.shape))


@cache
def _factors(dtype: torch.dtype, ulps: int) -> Tensor:
    dice = torch.Generator().manual_seed(0)
    units = torch.randint(-ulps, ulps + 1, (POOL,), generator=dice)
    return (1.0 + units.double() * torch.finfo(dtype).eps).to(dtype)
