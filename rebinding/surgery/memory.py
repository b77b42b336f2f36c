"""How many rows run at once: from free memory, and from what one row takes at its widest point."""

from __future__ import annotations

from typing import Any

import psutil
import torch
from transformers import PreTrainedModel

from rebinding.surgery.anatomy import Anatomy
from rebinding.surgery.plan import Plan
from rebinding.surgery.recording import Recording

CPU_BUDGET = 1 << 29
"""Bytes that a batch may take on a CPU: beyond this it only falls out of the caches."""
SHARE = 0.5
"""Share of the free memory that a batch may take."""


def row_bytes(model: PreTrainedModel, anatomy: Anatomy, plan: Plan, length: int, window: int) -> int:
    """An upper bound on what one row holds at once: residuals, projections, patterns, MLP; and its logits."""
    text: Any = model.config.get_text_config()
    size = model.dtype.itemsize
    inner = max(int(getattr(text, "intermediate_size", 0) or 0), 4 * anatomy.hidden)
    heads = anatomy.n_heads * anatomy.head_dim
    layer = window * (6 * anatomy.hidden + 6 * heads + 3 * inner) * size
    patterns = anatomy.n_heads * window * length * (2 * size + 4)
    logits = (
        sum(read.positions.shape[1] for read in plan.reads if read.site == "logits") * anatomy.vocabulary * 3 * size
    )
    return max(layer + patterns, logits, 1)


def rows_that_fit(model: PreTrainedModel, anatomy: Anatomy, plan: Plan, recording: Recording, window: int) -> int:
    """Rows of a batch; at least one."""
    device = model.device
    if device.type == "cuda":
        budget = int(torch.cuda.mem_get_info(device)[0] * SHARE)
    else:
        budget = min(CPU_BUDGET, int(psutil.virtual_memory().available * SHARE))
    return max(1, budget // row_bytes(model, anatomy, plan, recording.length, window))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on any device."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "not enough memory" in str(error)
