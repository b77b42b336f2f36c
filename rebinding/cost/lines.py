"""The cost of each request of a run, and their sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rebinding.experiments.workbench import REMEMBERED


@dataclass(frozen=True)
class Device:
    """A kind of accelerator: bytes of memory, and the assumed FLOP and bytes a second."""

    memory: int
    rate: float
    bandwidth: float


@dataclass(frozen=True)
class Line:
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
    lines: tuple[Line, ...]

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


def grouped(lines: Sequence[Line]) -> list[tuple[Line, int]]:
    """Groups of lines, equal except for `retained_bytes`: the first line and the count, in order of appearance."""
    groups: dict[tuple[object, ...], list[Line]] = {}
    for line in lines:
        content = (line.name, line.n, line.blocks, line.rows, line.flop, line.seconds, line.temporary_bytes)
        groups.setdefault(content, []).append(line)
    return [(group[0], len(group)) for group in groups.values()]
