"""The costs of a model as text: a line for each kind of request, and what fits into the GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rebinding.cost.lines import Costs, Device, grouped

GB, TERA, PETA = 1e9, 1e12, 1e15
WIDTH = 54


def parse_size(text: str) -> int:
    """Bytes: 80GB is 80 billion."""
    number = text.upper().removesuffix("GB")
    try:
        size = float(number)
    except ValueError:
        size = 0.0
    if not 0 < size < math.inf:
        raise ValueError(f"--gpu {text}: give a size in GB, such as 80GB")
    return int(size * GB)


def table(costs: Costs, device: Device, gpus: int) -> Iterator[str]:
    """All lines, their sum, and what fits into the GPUs; the unit is TFLOP for a small model."""
    model = costs.model
    unit, size = ("PFLOP", PETA) if costs.flop >= 10 * PETA else ("TFLOP", TERA)
    yield (
        f"{model.name}: prompts of {model.tokens} tokens, weights {model.weights / GB:.1f} GB; at "
        f"{device.rate / TERA:g} TFLOP/s and {device.bandwidth / TERA:g} TB/s"
    )
    if model.circuit_of:
        yield f"its circuit is not known yet; this is with that of {model.circuit_of}, at the same depths"
    yield f"  {'':{WIDTH}} {'N':>4} {'blocks':>6} {'rows':>7} {'GB':>6} {unit:>8} {'minutes':>8}"
    for line, count in grouped(costs.lines):
        name = line.name + (f" (x{count})" if count > 1 else "")
        yield (
            f"  {name:{WIDTH}} {line.n:4} {line.blocks:6} {line.rows:7} {line.temporary_bytes / GB:6.1f} "
            f"{count * line.flop / size:8.2f} {count * line.seconds / 60:8.1f}"
        )
    yield f"  {'all':{WIDTH}} {'':4} {'':6} {'':7} {'':6} {costs.flop / size:8.2f} {costs.seconds / 60:8.1f}"
    yield f"  {fitting(costs, device, gpus)}"


def fitting(costs: Costs, device: Device, gpus: int) -> str:
    """What fits and what does not, in a sentence."""
    most = f"{costs.peak / GB:.0f} GB at the most, {(costs.peak - costs.model.weights) / GB:.0f} GB beside the weights"
    if costs.peak <= device.memory:
        share = f"; {gpus} GPUs judge {gpus} models at a time" if gpus > 1 else ""
        return f"{most}: fits into one GPU of {device.memory / GB:g} GB{share}"
    needed = -(-costs.peak // device.memory)
    if needed <= gpus:
        return (
            f"{most}: does not fit into one GPU of {device.memory / GB:g} GB; device_map='auto' spreads the layers "
            f"over {needed}, which compute one after the other, so the time is the same"
        )
    return f"{most}: does not fit into {gpus} GPUs of {device.memory / GB:g} GB; {needed} would do"
