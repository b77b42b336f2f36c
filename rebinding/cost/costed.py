"""An evidence source that adds up what evidence would cost. Nothing is computed.

The experiments' own code runs on hollow tensors in the shape of the model (`rebinding.cost.loaded_model`), one block of
each request: batches are cut by the surgeon's own rule from the memory that is left, FLOP are counted as torch counts
them, memory is that of all storage alive. Blocks of a request are alike: all take what the first one took.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

from rebinding.cost.blocks import Part, first_block, shape_of
from rebinding.cost.evidence import whole_evidence
from rebinding.cost.fake_device import FakeDevice, pretended
from rebinding.cost.lines import Line
from rebinding.cost.loaded_model import Rehearsing
from rebinding.cost.names import name_of
from rebinding.evidence import Evidence, Request
from rebinding.evidence.activations import Activations
from rebinding.experiments.search.request import Crossings, Losses, SearchedCircuit, Step
from rebinding.experiments.workbench import Workbench, measure_of, tensor_requests, tensors_of
from rebinding.paper.circuit import Circuit

BRANCHING = (Crossings, SearchedCircuit, Step, Losses)
"""Kinds of a search that goes on where the numbers of its last step say: without them there is nothing to rehearse."""
Value = TypeVar("Value", Evidence, Activations)


class NotCosted(Exception):
    """A kind of request whose cost depends on numbers."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"not costed: {kind}")
        self.kind = kind


@dataclass(frozen=True, eq=False)
class Taken:
    """What one block took; `stays` are the bytes that it left behind."""

    rows: int
    flop: float
    seconds: float
    extra: int
    stays: int


class Costed:
    """Costs of requests to a hollow bench. `lines` has one for each request and for the tensors that it needs, in the
    order in which they were first asked for. `heads` is the circuit that discovery is made to find."""

    def __init__(self, bench: Workbench, fake_device: FakeDevice, heads: Circuit) -> None:
        self.bench, self.fake_device, self.heads = bench, fake_device, heads
        self.weights = fake_device.ledger.live[pretended()]
        self.lines: dict[str, Line] = {}
        """By the key of the request."""
        self._evidence: dict[Hashable, tuple[Evidence, Taken]] = {}
        self._tensors: dict[Hashable, tuple[Activations, Taken]] = {}

    @property
    def absent(self) -> int:
        """Bytes that the requests keep in a run, and that are not here: a rehearsal keeps those of one block."""
        here = sum(taken.stays for _, taken in (*self._evidence.values(), *self._tensors.values()))
        return sum(line.kept for line in self.lines.values()) - here

    def get(self, request: Request) -> Evidence:
        """Evidence in the right shape, after its cost was added."""
        if isinstance(request, BRANCHING):
            raise NotCosted(request.KIND.name)
        for needed in tensor_requests(request):
            self._add_tensors(needed)
        part = first_block(request, self.bench.prompts)
        measure = measure_of(type(request))
        block, taken = self._rehearse(self._evidence, part, lambda: measure(self.bench, part.request))
        self._enter(request, part, taken, int(taken.stays * part.n / part.block))
        anatomy = self.bench.loaded_model.anatomy
        return whole_evidence(request, block, self.heads, anatomy.n_layers, anatomy.n_heads)

    def keys(self, request: Request) -> list[str]:
        """The keys of the lines of a request, those of its tensors first."""
        keys = [one.key for one in (*tensor_requests(request), request)]
        return [key for key in keys if key in self.lines]

    def _add_tensors(self, request: Request) -> None:
        """Tensors are as large, whatever they are the mean of: those of a block stand for all."""
        if request.key in self.lines:
            return
        part = first_block(request, self.bench.prompts)
        compute = tensors_of(type(request))
        assert compute is not None
        found, taken = self._rehearse(self._tensors, part, lambda: Activations(compute(self.bench, part.request)))
        self.bench.once(request, lambda: found)
        self._enter(request, part, taken, taken.stays)

    def _rehearse(
        self, known: dict[Hashable, tuple[Value, Taken]], part: Part, run: Callable[[], Value]
    ) -> tuple[Value, Taken]:
        """One block, unless one like it was rehearsed before."""
        shape = shape_of(part.request, self.bench.prompts)
        if shape not in known:
            known[shape] = self._measure(run)
        return known[shape]

    def _measure(self, run: Callable[[], Value]) -> tuple[Value, Taken]:
        """Of many blocks the last few recordings are remembered, and perhaps nobody asks for those: none are here."""
        ledger, place, surgeon = self.fake_device.ledger, pretended(), self.bench.surgeon
        assert isinstance(surgeon, Rehearsing), "costs are added up on a hollow bench"
        surgeon.recordings.entries.clear()
        surgeon.rows_seen.clear()
        ledger.reset()
        before = ledger.live[place]
        with self.fake_device:
            found = run()
        return found, Taken(
            rows=max(surgeon.rows_seen, default=0),
            flop=ledger.flop,
            seconds=ledger.seconds,
            extra=ledger.peak[place] - ledger.live[place],
            stays=max(0, ledger.live[place] - surgeon.recordings.bytes() - before),
        )

    def _enter(self, request: Request, part: Part, taken: Taken, kept: int) -> None:
        self.lines[request.key] = Line(
            name_of(request),
            part.n,
            part.blocks,
            taken.rows,
            taken.flop * part.share,
            taken.seconds * part.share,
            taken.extra,
            kept,
        )
