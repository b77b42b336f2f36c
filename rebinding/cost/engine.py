"""The engine of `--cost`: models without weights, and evidence whose cost is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from rebinding.cost.fake_device import FakeDevice, fake_accelerator
from rebinding.cost.lines import Device, ModelSize
from rebinding.cost.loaded_model import HollowModel, load_hollow
from rebinding.cost.model_facts import ModelFacts, model_facts
from rebinding.cost.source import CostSource
from rebinding.evidence.store import Store
from rebinding.experiments.workbench import REMEMBERED, Workbench
from rebinding.models import LoadedModel
from rebinding.models.devices import check_dtype
from rebinding.study.engine import Session
from rebinding.surgery.memory import SHARE

Out = TypeVar("Out")


class CostEngine:
    """Counts costs on a device; `tokens` is the length of prompts, None for that of the model's own tokenizer."""

    def __init__(self, device: Device, tokens: int | None = None) -> None:
        self.device = device
        self.tokens = tokens
        self.fake_device = FakeDevice(hollow=True)
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

    def finish(self, job: Callable[[], Out]) -> Out:
        return job()

    def prepare(self, jobs: Iterable[Callable[[], object]]) -> None:
        """Nothing is computed, so nothing can be computed beforehand."""

    def close(self) -> None:
        """Nothing is open."""

    def _free_memory(self) -> int:
        """The bytes that a batch may take, after what a run keeps by then."""
        reserved = REMEMBERED + sum(source.missing_bytes for source in self._sources)
        return int(max(0, self.device.memory - self.fake_device.ledger.live[fake_accelerator()] - reserved) * SHARE)
