"""The way back from a device: every trip to the CPU waits until the device has caught up, so few are made."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def brought(flags: Sequence[Tensor]) -> list[Tensor]:
    """Lists of flags on the CPU. All that stand on one device travel together."""
    found = list(flags)
    for device in {one.device for one in flags}:
        here = [number for number, one in enumerate(flags) if one.device == device]
        parts = torch.cat([flags[number] for number in here]).cpu().split([flags[number].numel() for number in here])
        for number, part in zip(here, parts, strict=True):
            found[number] = part
    return found
