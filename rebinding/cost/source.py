"""An evidence source that counts the cost of evidence and computes nothing, and the engine of `--cost` that makes it.

The experiments' own code runs one block of each request on hollow tensors in the shape of the model
(`rebinding.cost.hollow_model`). The surgeon's own rule cuts batches from the free memory, torch's own counter counts
FLOP, and memory is that of all live storage. All blocks of a request cost the same as the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, TypeVar

from rebinding.cost.blocks import CostedPart, first_block, name_of, shape_of
from rebinding.cost.evidence import complete_evidence
from rebinding.cost.fake_device import FakeDevice, fake_accelerator
from rebinding.cost.hollow_model import HollowModel, ModelFacts, RowCountingSurgeon, load_hollow, model_facts
from rebinding.cost.table import Accelerator, CostLine, ModelSize
from rebinding.evidence import Evidence, Request
from rebinding.evidence.store import Activations, Store
from rebinding.experiments.search.request import Crossings, Losses, SearchedCircuit, Step
from rebinding.experiments.table import experiment_of
from rebinding.experiments.workbench import REMEMBERED, Workbench, tensor_requests
from rebinding.models import LoadedModel
from rebinding.models.devices import check_dtype
from rebinding.paper.circuit import Circuit
from rebinding.study.engine import Engine, Session
from rebinding.surgery.memory import SHARE

BRANCHING = (Crossings, SearchedCircuit, Step, Losses)
"""Kinds of a search whose next step depends on the numbers of the last one: without numbers it has no cost."""
Value = TypeVar("Value", Evidence, Activations)


class NotCosted(Exception):
    """A kind of request whose cost depends on numbers."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"not costed: {kind}")
        self.kind = kind


class CostSource:
    """Costs of requests to a hollow workbench. `lines` has one line for each request and for the tensors that it needs,
    in the order of first use. `heads` is the circuit that discovery will find."""

    def __init__(self, bench: Workbench, fake_device: FakeDevice, heads: Circuit) -> None:
        self.bench, self.fake_device, self.heads = bench, fake_device, heads
        self.weights = fake_device.ledger.live[fake_accelerator()]
        self.lines: dict[str, CostLine] = {}
        """By the key of the request."""
        self.parts: dict[str, CostedPart] = {}
        """The part of each request that a line was counted on, by the same key."""
        self._blocks: dict[Hashable, tuple[Any, CostLine]] = {}
        """The value and the cost of every block that was run, by shape."""

    @property
    def missing_bytes(self) -> int:
        """Bytes that the requests keep in a run but not here, where only those of one block are kept."""
        present = sum(cost.retained_bytes for _, cost in self._blocks.values())
        return sum(line.retained_bytes for line in self.lines.values()) - present

    def get(self, request: Request) -> Evidence:
        """Add the cost of a request, and return fake evidence of the right shape."""
        if isinstance(request, BRANCHING):
            raise NotCosted(request.KIND.name)
        for needed in tensor_requests(request):
            self._add_tensors(needed)
        part, measure = first_block(request, self.bench), experiment_of(type(request)).evidence
        block, cost = self._run_once(part.request, measure)
        once = None if part.once is None else self._run_once(part.once, measure)[1]
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
        part, compute = first_block(request, self.bench), experiment_of(type(request)).tensors
        tensors, cost = self._run_once(part.request, lambda bench, block: Activations(compute(bench, block)))
        self.bench.get_or_compute(request, lambda: tensors)
        self._add_line(request, part, cost, cost.retained_bytes)

    def _run_once(self, block: Request, compute: Callable[[Workbench, Any], Value]) -> tuple[Value, CostLine]:
        """The value and the cost of a block. It is run unless one of the same shape was."""
        shape = shape_of(block, self.bench.prompts)
        if shape not in self._blocks:
            self._blocks[shape] = self._measure(lambda: compute(self.bench, block))
        return self._blocks[shape]

    def _measure(self, run: Callable[[], Value]) -> tuple[Value, CostLine]:
        """Run a block and measure its cost, as a line without a name. Recordings of earlier blocks are dropped: in a
        run only the last few remain, and may not be used again."""
        ledger, device, surgeon = self.fake_device.ledger, fake_accelerator(), self.bench.surgeon
        assert isinstance(surgeon, RowCountingSurgeon), "costs are added up on a hollow bench"
        surgeon.recordings.entries.clear()
        surgeon.row_counts.clear()
        ledger.reset()
        before = ledger.live[device]
        with self.fake_device:
            result = run()
        return result, CostLine(
            name="",
            n=0,
            blocks=1,
            rows=max(surgeon.row_counts, default=0),
            flop=ledger.flop,
            bytes_moved=ledger.bytes_moved,
            launches=ledger.launches,
            seconds=ledger.seconds,
            temporary_bytes=ledger.peak[device] - ledger.live[device],
            retained_bytes=max(0, ledger.live[device] - surgeon.recordings.bytes() - before),
        )

    def _add_line(self, request: Request, part: CostedPart, cost: CostLine, retained_bytes: int) -> None:
        self.parts[request.key] = part
        whole = cost.times(part.n / part.block)
        self.lines[request.key] = replace(
            whole, name=name_of(request), n=part.n, blocks=part.blocks, retained_bytes=retained_bytes
        )


class CostEngine(Engine):
    """Counts costs on a device; `tokens` is the length of prompts, None for that of the model's own tokenizer."""

    def __init__(self, device: Accelerator, tokens: int | None = None) -> None:
        self.device = device
        self.tokens = tokens
        self.fake_device = FakeDevice()
        self.fake_device.ledger.rate, self.fake_device.ledger.bandwidth = device.rate, device.bandwidth
        self._facts: dict[LoadedModel, ModelFacts] = {}
        self._sources: list[CostSource] = []

    def loaded_model(self, name: str, *, dtype: str, device: str, store: Store | None) -> HollowModel:
        facts = model_facts(name, self.tokens)
        model = load_hollow(
            name,
            self.fake_device,
            dtype=check_dtype(dtype),
            tokens=facts.tokens,
            budget=self._free_memory,
            config=facts.config,
        )
        self._facts[model] = facts
        return model

    def session(self, loaded_model: LoadedModel, store: Store | None, *, skip_prompts: int = 0) -> Session:
        facts, bench = self._facts[loaded_model], Workbench(loaded_model, skip_prompts=skip_prompts)
        source = CostSource(bench, self.fake_device, facts.heads)
        self._sources.append(source)
        return Session(loaded_model, bench.prompts, source, facts.form)

    def size_of(self, session: Session) -> ModelSize:
        """The sizes of a session's model."""
        facts = self._facts[session.loaded_model]
        assert isinstance(session.source, CostSource)
        return ModelSize(facts.name, facts.tokens, session.source.weights, facts.circuit_of)

    def _free_memory(self) -> int:
        """The bytes that a batch may take, after what a run keeps by then."""
        reserved = REMEMBERED + sum(source.missing_bytes for source in self._sources)
        return int(max(0, self.device.memory - self.fake_device.ledger.live[fake_accelerator()] - reserved) * SHARE)
