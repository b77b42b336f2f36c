"""What judging a model will take, before anything of it is loaded: a rehearsal of one block of every kind of request.

The experiments' own code runs on hollow tensors in the shape of the model (`rebinding.rehearsal.subject`), so nothing
is counted twice: batches are cut by the surgeon's own rule from the memory that is left, FLOP are counted as torch
counts them, memory is that of all storage alive. Blocks of a kind are alike: all take what the first one took.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rebinding.rehearsal.agenda import Item, agenda
from rebinding.rehearsal.known import known
from rebinding.rehearsal.pretended import Pretence, pretended
from rebinding.rehearsal.subject import Rehearsing, hollow_bench
from rebinding.study.bench import REMEMBERED, Bench
from rebinding.surgery.memory import SHARE


@dataclass(frozen=True)
class Line:
    """What one kind of request takes, all its blocks and times; `extra` is memory beside weights and what is kept,
    `kept` what its blocks leave behind for later ones."""

    item: Item
    rows: int
    flop: float
    seconds: float
    extra: int
    kept: int


@dataclass(frozen=True)
class Device:
    """A kind of accelerator: bytes of memory, and the FLOP and the bytes a second that it is trusted with."""

    memory: int
    rate: float
    bandwidth: float


@dataclass(frozen=True)
class Planned:
    """The lines of a model, and the memory that it takes before anything runs."""

    name: str
    tokens: int
    weights: int
    lines: tuple[Line, ...]
    whose: str | None = None
    """Whose circuit it was rehearsed with, where the model's own is not known."""

    @property
    def peak(self) -> int:
        """The most memory at any time: what earlier kinds left behind counts for later ones."""
        kept, most = 0, 0
        for line in self.lines:
            kept += line.kept
            most = max(most, self.weights + REMEMBERED + kept + line.extra)
        return most

    @property
    def seconds(self) -> float:
        """All of it on one device."""
        return sum(line.seconds for line in self.lines)

    @property
    def flop(self) -> float:
        return sum(line.flop for line in self.lines)


def plan(
    name: str,
    device: Device,
    *,
    tokens: int | None = None,
    samples: int | None = None,
    tick: Callable[[str], Any] = lambda _: None,
) -> Planned:
    """Rehearse everything that is asked of a model; `tick` hears what comes next."""
    told, pretence = known(name, tokens), Pretence(hollow=True)
    ledger = pretence.ledger
    ledger.rate, ledger.bandwidth = device.rate, device.bandwidth

    def left() -> int:
        return int(max(0, device.memory - ledger.live[pretended()]) * SHARE)

    with pretence:
        bench = hollow_bench(name, pretence, dtype=told.dtype, tokens=told.tokens, budget=left, config=told.config)
        weights = ledger.live[pretended()]
        lines = tuple(rehearsed(bench, pretence, agenda(bench, told.heads, samples, told.form), tick))
    return Planned(told.name, told.tokens, weights, lines, told.whose)


def rehearsed(
    bench: Bench, pretence: Pretence, items: Iterator[Item], tick: Callable[[str], Any] = lambda _: None
) -> Iterator[Line]:
    """One block of every item, and what all of them take."""
    ledger, place, surgeon = pretence.ledger, pretended(), bench.surgeon
    assert isinstance(surgeon, Rehearsing), "plans are made on a hollow bench"
    for item in items:
        tick(item.name)
        asked = item.make(min(item.block, item.n))
        surgeon.recordings.kept.clear()  # of many blocks the last few are remembered, and perhaps no one asks for those
        ledger.reset()
        before = ledger.live[place]
        surgeon.rows_seen.clear()
        if item.averaged:
            bench.averaged(asked)
            bench.tensors[item.make(item.n)] = bench.tensors.pop(asked)  # as large, whatever it is the average of
        else:
            bench.measured(asked)
        share = item.times * item.n / min(item.block, item.n)
        stays = ledger.live[place] - surgeon.recordings.bytes() - before
        yield Line(
            item,
            rows=max(surgeon.rows_seen, default=0),
            flop=ledger.flop * share,
            seconds=ledger.seconds * share,
            extra=ledger.peak[place] - ledger.live[place],
            kept=int(stays if item.averaged else stays * item.n / min(item.block, item.n)) if stays > 0 else 0,
        )
