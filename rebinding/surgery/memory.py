"""Batch sizes from free memory and from the memory of one row at its peak; grouped transfers to the CPU.

Every transfer to the CPU waits until the device has caught up, so there are few.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import psutil
import torch
from torch import Tensor

from rebinding.surgery.anatomy import Anatomy

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CPU_BUDGET = 1 << 27
"""Bytes that a batch may take on a CPU. A larger one falls out of the caches, and its single tensors reach the 32 MB
beyond which glibc maps and unmaps memory for every operation (256 rows of a plant: 4.1 s at once, 2.4 s in four)."""
SHARE = 0.5
"""Share of the free memory that a batch may take."""
PROMPTS, MOST_PROMPTS = 20, 320
"""Prompts that are recorded and edited together: on a CPU, and at most on a device."""
RECORDING = 0.3
"""Share of a batch's memory that their recording may take."""


def budget(model: PreTrainedModel) -> int:
    """Bytes that a batch may take on the device of a model: a share of what is free, and of what torch's allocator
    keeps after earlier batches."""
    if model.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(model.device)
        reusable = torch.cuda.memory_reserved(model.device) - torch.cuda.memory_allocated(model.device)
        return int((free + reusable) * SHARE)
    return min(CPU_BUDGET, int(psutil.virtual_memory().available * SHARE))


def rows_that_fit(model: PreTrainedModel, anatomy: Anatomy, *, window: int, keys: int, logits: int, room: int) -> int:
    """Rows of a batch that take at most `room` bytes; at least one.

    Each row computes `window` tokens, which meet `keys` tokens, and whole vocabularies at `logits` tokens. It is an
    upper bound on the memory of one row: residuals, projections, patterns, MLP; or its logits.
    """
    text: Any = model.config.get_text_config()
    size = model.dtype.itemsize
    inner = getattr(text, "intermediate_size", 0) or 0  # a list where layers differ
    inner = max(*inner, 0) if isinstance(inner, list) else inner
    inner = max(inner, 4 * anatomy.hidden)
    heads = max(part.n_heads * part.head_dim for part in anatomy.parts)
    layer = window * (6 * anatomy.hidden + 6 * heads + 3 * inner) * size
    patterns = anatomy.n_heads * window * keys * (2 * size + 4)
    return max(1, room // max(layer + patterns, logits * anatomy.vocabulary * 3 * size, 1))


def recorded_bytes(model: PreTrainedModel, anatomy: Anatomy, length: int) -> int:
    """Bytes of the recording of one prompt that keeps z: residuals, what attention adds to them, keys, values and z."""
    per_token = anatomy.hidden + sum(
        2 * anatomy.hidden + (2 * parts.n_kv_heads + parts.n_heads) * parts.head_dim for parts in anatomy.parts
    )
    return per_token * length * model.dtype.itemsize


def prompts_that_fit(model: PreTrainedModel, anatomy: Anatomy, *, length: int, room: int) -> int:
    """Prompts of `length` tokens to record and edit together.

    A CPU gains nothing from more than `PROMPTS`. On a device an operation on few prompts takes as long as its launch,
    so there they are as many as their recording may hold.
    """
    if room <= CPU_BUDGET:
        return PROMPTS
    fits = int(room * RECORDING) // recorded_bytes(model, anatomy, length)
    return max(PROMPTS, min(MOST_PROMPTS, fits))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on any device."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "not enough memory" in str(error)


def in_parts(rows: Tensor, size: int, run: Callable[[Tensor], None]) -> None:
    """Run rows in their order, `size` at once; a part that does not fit is halved until it does.

    A single row that does not fit is an error.
    """
    queue = list(rows.split(size))
    while queue:
        part = queue.pop(0)
        try:
            run(part)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or part.numel() == 1:
                raise
            queue[:0] = list(part.split((part.numel() + 1) // 2))


def to_cpu_together(flags: Sequence[Tensor]) -> list[Tensor]:
    """Lists of flags, moved to the CPU in one transfer per device."""
    on_cpu = list(flags)
    for device in {flag.device for flag in flags}:
        numbers = [number for number, flag in enumerate(flags) if flag.device == device]
        parts = (
            torch.cat([flags[number] for number in numbers]).cpu().split([flags[number].numel() for number in numbers])
        )
        for number, part in zip(numbers, parts, strict=True):
            on_cpu[number] = part
    return on_cpu
