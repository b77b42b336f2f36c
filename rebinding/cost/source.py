"""An evidence source that counts the cost of evidence and computes nothing.

The experiments' own code runs one block of each request on hollow tensors in the shape of the model
(`rebinding.cost.loaded_model`). The surgeon's own rule cuts batches from the free memory, torch's own counter counts
FLOP, and memory is that of all live storage. All blocks of a request cost the same as the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TypeVar

from rebinding.cost.blocks import Part, first_block, shape_of
from rebinding.cost.evidence import complete_evidence
from rebinding.cost.fake_device import FakeDevice, fake_accelerator
from rebinding.cost.lines import Line
from rebinding.cost.loaded_model import RowCountingSurgeon
from rebinding.cost.names import name_of
from rebinding.evidence import Evidence, Request
from rebinding.evidence.activations import Activations
from rebinding.experiments.search.request import Crossings, Losses, SearchedCircuit, Step
from rebinding.experiments.table import experiment_of
from rebinding.experiments.workbench import Workbench, tensor_requests
from rebinding.paper.circuit import Circuit

BRANCHING = (Crossings, SearchedCircuit, Step, Losses)
"""Kinds of a search whose next step depends on the numbers of the last one: without numbers it has no cost."""
Value = TypeVar("Value", Evidence, Activations)


class NotCosted(Exception):
    """A kind of request whose cost depends on numbers."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"not costed: {kind}")
        self.kind = kind


@dataclass(frozen=True, eq=False)
class BlockCost:
    """The cost of one block; it keeps `retained_bytes` in memory."""

    rows: int
    flop: float
    bytes_moved: float
    launches: float
    seconds: float
    temporary_bytes: int
    retained_bytes: int

    def times(self, repeats: float, once: BlockCost | None = None) -> BlockCost:
        """The cost of doing all of it `repeats` times, but for `once`, in as much memory."""
        costs = {}
        for name in ("flop", "bytes_moved", "launches", "seconds"):
            single = 0.0 if once is None else getattr(once, name)
            costs[name] = single + repeats * (getattr(self, name) - single)
        return replace(self, **costs)


class CostSource:
    """Costs of requests to a hollow workbench. `lines` has one line for each request and for the tensors that it needs,
    in the order of first use. `heads` is the circuit that discovery will find."""

    def __init__(self, bench: Workbench, fake_device: FakeDevice, heads: Circuit) -> None:
        self.bench, self.fake_device, self.heads = bench, fake_device, heads
        self.weights = fake_device.ledger.live[fake_accelerator()]
        self.lines: dict[str, Line] = {}
        """By the key of the request."""
        self.parts: dict[str, Part] = {}
        """The part of each request that a line was counted on, by the same key."""
        self._evidence: dict[Hashable, tuple[Evidence, BlockCost]] = {}
        self._tensors: dict[Hashable, tuple[Activations, BlockCost]] = {}

    @property
    def missing_bytes(self) -> int:
        """Bytes that the requests keep in a run but not here, where only those of one block are kept."""
        present = sum(cost.retained_bytes for _, cost in (*self._evidence.values(), *self._tensors.values()))
        return sum(line.retained_bytes for line in self.lines.values()) - present

    def get(self, request: Request) -> Evidence:
        """Add the cost of a request, and return fake evidence of the right shape."""
        if isinstance(request, BRANCHING):
            raise NotCosted(request.KIND.name)
        for needed in tensor_requests(request):
            self._add_tensors(needed)
        part = first_block(request, self.bench)
        measure = experiment_of(type(request)).evidence

        def run(of: Request) -> tuple[Evidence, BlockCost]:
            return self._cost_once(self._evidence, of, lambda: measure(self.bench, of))

        (block, cost), once = run(part.request), None if part.once is None else run(part.once)[1]
        cost = cost.times(part.repeats, once)
        self._add_line(request, part, cost, int(cost.retained_bytes * part.n / part.block))
        anatomy = self.bench.loaded_model.anatomy
        return complete_evidence(request, block, self.heads, anatomy.n_layers, anatomy.n_heads)

    def keys(self, request: Request) -> list[str]:
        """The keys of the lines of a request, its tensors first."""
        keys = [needed.key for needed in (*tensor_requests(request), request)]
        return [key for key in keys if key in self.lines]

    def _add_tensors(self, request: Request) -> None:
        """Add the cost of tensors. Their size does not depend on the prompts of the mean: those of a block will do."""
        if request.key in self.lines:
            return
        part = first_block(request, self.bench)
        compute = experiment_of(type(request)).tensors
        tensors, cost = self._cost_once(
            self._tensors, part.request, lambda: Activations(compute(self.bench, part.request))
        )
        self.bench.get_or_compute(request, lambda: tensors)
        self._add_line(request, part, cost, cost.retained_bytes)

    def _cost_once(
        self, costs: dict[Hashable, tuple[Value, BlockCost]], request: Request, run: Callable[[], Value]
    ) -> tuple[Value, BlockCost]:
        """Run one block, unless `costs` has one of the same shape."""
        shape = shape_of(request, self.bench.prompts)
        if shape not in costs:
            costs[shape] = self._measure(run)
        return costs[shape]

    def _measure(self, run: Callable[[], Value]) -> tuple[Value, BlockCost]:
        """Run a block and measure its cost. Recordings of earlier blocks are dropped: in a run only the last few
        remain, and may not be used again."""
        ledger, device, surgeon = self.fake_device.ledger, fake_accelerator(), self.bench.surgeon
        assert isinstance(surgeon, RowCountingSurgeon), "costs are added up on a hollow bench"
        surgeon.recordings.entries.clear()
        surgeon.row_counts.clear()
        ledger.reset()
        before = ledger.live[device]
        with self.fake_device:
            result = run()
        return result, BlockCost(
            rows=max(surgeon.row_counts, default=0),
            flop=ledger.flop,
            bytes_moved=ledger.bytes_moved,
            launches=ledger.launches,
            seconds=ledger.seconds,
            temporary_bytes=ledger.peak[device] - ledger.live[device],
            retained_bytes=max(0, ledger.live[device] - surgeon.recordings.bytes() - before),
        )

    def _add_line(self, request: Request, part: Part, cost: BlockCost, retained_bytes: int) -> None:
        self.parts[request.key] = part
        whole = cost.times(part.n / part.block)
        self.lines[request.key] = Line(
            name_of(request),
            part.n,
            part.blocks,
            cost.rows,
            whole.flop,
            whole.bytes_moved,
            whole.launches,
            whole.seconds,
            cost.temporary_bytes,
            retained_bytes,
        )
