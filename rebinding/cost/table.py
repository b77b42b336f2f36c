"""The cost of each request of a run, their sum, and both as text: what fits into the GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rebinding.experiments.workbench import REMEMBERED

GB, TERA, PETA = 1e9, 1e12, 1e15
WIDTH = 54


@dataclass(frozen=True)
class Accelerator:
    """A kind of accelerator: bytes of memory, and the assumed FLOP and bytes a second."""

    memory: int
    rate: float
    bandwidth: float


@dataclass(frozen=True)
class CostLine:
    """The cost of one request with all its blocks: `rows` of its largest batch, FLOP, bytes moved, launches, seconds.
    It leaves `retained_bytes` in memory for later requests, and needs `temporary_bytes` besides these and the weights.
    """

    name: str
    n: int
    blocks: int
    rows: int
    flop: float
    bytes_moved: float
    launches: float
    seconds: float
    temporary_bytes: int
    retained_bytes: int

    def times(self, repeats: float, once: CostLine | None = None) -> CostLine:
        """The cost of doing all of it `repeats` times, but for `once`, in as much memory."""
        costs = {}
        for name in ("flop", "bytes_moved", "launches", "seconds"):
            single = 0.0 if once is None else getattr(once, name)
            costs[name] = single + repeats * (getattr(self, name) - single)
        return replace(self, **costs)


@dataclass(frozen=True)
class ModelSize:
    """Sizes of a model without weights: tokens of a prompt, bytes of the weights, and whose circuit replaces its own,
    where that is not known."""

    name: str
    tokens: int
    weights: int
    circuit_of: str | None = None


@dataclass(frozen=True)
class Costs:
    """The lines of a model, in the order of its claims' requests."""

    model: ModelSize
    lines: tuple[CostLine, ...]

    @property
    def peak(self) -> int:
        """The most memory at any time; what earlier requests keep counts for later ones."""
        retained_bytes, most = 0, 0
        for line in self.lines:
            retained_bytes += line.retained_bytes
            most = max(most, self.model.weights + REMEMBERED + retained_bytes + line.temporary_bytes)
        return most

    @property
    def seconds(self) -> float:
        """The time of all lines on one device."""
        return sum(line.seconds for line in self.lines)

    @property
    def flop(self) -> float:
        return sum(line.flop for line in self.lines)


def grouped(lines: Sequence[CostLine]) -> list[tuple[CostLine, int]]:
    """Groups of lines, equal except for `retained_bytes`: the first line and the count, in order of appearance."""
    groups: dict[tuple[object, ...], list[CostLine]] = {}
    for line in lines:
        content = (line.name, line.n, line.blocks, line.rows, line.flop, line.seconds, line.temporary_bytes)
        groups.setdefault(content, []).append(line)
    return [(group[0], len(group)) for group in groups.values()]


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


def table(costs: Costs, device: Accelerator, gpus: int) -> Iterator[str]:
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


def fitting(costs: Costs, device: Accelerator, gpus: int) -> str:
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
