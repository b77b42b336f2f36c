"""How many rows run at once: from free memory, and from what one row takes at its widest point."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psutil
import torch
from torch import Tensor

from rebinding.surgery.anatomy import Anatomy
from rebinding.surgery.plan import Plan
from rebinding.surgery.recording import Recording

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CPU_BUDGET = 1 << 27
"""Bytes that a batch may take on a CPU. A larger one falls out of the caches, and its single tensors reach the 32 MB
beyond which glibc maps and unmaps memory for every operation (256 rows of a plant: 4.1 s at once, 2.4 s in four)."""
SHARE = 0.5
"""Share of the free memory that a batch may take."""


def _row_bytes(model: PreTrainedModel, anatomy: Anatomy, *, window: int, keys: int, logits: int) -> int:
    """An upper bound on what one row holds at once: residuals, projections, patterns, MLP; and its logits."""
    text: Any = model.config.get_text_config()
    size = model.dtype.itemsize
    inner = max(int(getattr(text, "intermediate_size", 0) or 0), 4 * anatomy.hidden)
    heads = anatomy.n_heads * anatomy.head_dim
    layer = window * (6 * anatomy.hidden + 6 * heads + 3 * inner) * size
    patterns = anatomy.n_heads * window * keys * (2 * size + 4)
    return max(layer + patterns, logits * anatomy.vocabulary * 3 * size, 1)


def budget(model: PreTrainedModel) -> int:
    """Bytes that a batch may take on the device of a model."""
    if model.device.type == "cuda":
        return int(torch.cuda.mem_get_info(model.device)[0] * SHARE)
    return min(CPU_BUDGET, int(psutil.virtual_memory().available * SHARE))


def rows_that_fit(
    model: PreTrainedModel, anatomy: Anatomy, plan: Plan, recording: Recording, window: int, *, room: int
) -> int:
    """Rows of a batch of replays over a window of tokens that take at most `room` bytes; at least one."""
    logits = sum(read.positions.shape[1] for read in plan.reads if read.site == "logits")
    row = _row_bytes(model, anatomy, window=window, keys=recording.length, logits=logits)
    return max(1, room // row)


def held_rows(model: PreTrainedModel, anatomy: Anatomy, recording: Recording, tokens: int = 8, *, room: int) -> int:
    """Rows of a batch of held runs, each a few tokens wide, that take at most `room` bytes; at least one."""
    row = _row_bytes(model, anatomy, window=tokens, keys=recording.length + tokens, logits=1)
    return max(1, room // row)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on any device."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "not enough memory" in str(error)


def in_parts(rows: Tensor, size: int, run: Callable[[Tensor], None]) -> None:
    """Run rows in their order, `size` at once; a part that does not fit is halved until it does.

    A single row that does not fit is an error: nothing is left to halve.
    """
    waiting = list(rows.split(size))
    while waiting:
        part = waiting.pop(0)
        try:
            run(part)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or part.numel() == 1:
                raise
            waiting[:0] = list(part.split((part.numel() + 1) // 2))
