"""What each request of a run takes, and what all of them come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rebinding.experiments.workbench import REMEMBERED


@dataclass(frozen=True)
class Device:
    """A kind of accelerator: bytes of memory, and the FLOP and the bytes a second that it is trusted with."""

    memory: int
    rate: float
    bandwidth: float


@dataclass(frozen=True)
class Line:
    """What one request takes, all its blocks: `rows` of its largest batch, FLOP, seconds; `extra` is memory beside
    weights and what is kept, `kept` what it leaves behind for later requests."""

    name: str
    n: int
    blocks: int
    rows: int
    flop: float
    seconds: float
    extra: int
    kept: int


@dataclass(frozen=True)
class Shaped:
    """What is known of a model that is not loaded: the length of its prompts, the bytes of its weights, and whose
    circuit stands in, where its own is not known."""

    name: str
    tokens: int
    weights: int
    circuit_of: str | None = None


@dataclass(frozen=True)
class Costs:
    """The lines of a model, in the order in which its claims ask for them."""

    model: Shaped
    lines: tuple[Line, ...]

    @property
    def peak(self) -> int:
        """The most memory at any time: what earlier requests left behind counts for later ones."""
        kept, most = 0, 0
        for line in self.lines:
            kept += line.kept
            most = max(most, self.model.weights + REMEMBERED + kept + line.extra)
        return most

    @property
    def seconds(self) -> float:
        """All of it on one device."""
        return sum(line.seconds for line in self.lines)

    @property
    def flop(self) -> float:
        return sum(line.flop for line in self.lines)


def grouped(lines: Sequence[Line]) -> list[tuple[Line, int]]:
    """Lines that are equal in everything but what they keep, each with how often it is there, in the order of the
    first of each."""
    found: dict[tuple[object, ...], list[Line]] = {}
    for line in lines:
        alike = (line.name, line.n, line.blocks, line.rows, line.flop, line.seconds, line.extra)
        found.setdefault(alike, []).append(line)
    return [(some[0], len(some)) for some in found.values()]
