"""The engine of a run that is only to be costed: models without weights, and evidence that is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from rebinding.cost.costed import Costed
from rebinding.cost.fake_device import FakeDevice, pretended
from rebinding.cost.known import Known, known
from rebinding.cost.lines import Device, Shaped
from rebinding.cost.loaded_model import Shape, hollow_subject
from rebinding.evidence.store import Store
from rebinding.experiments.workbench import REMEMBERED, Workbench
from rebinding.models import LoadedModel
from rebinding.models.devices import check_dtype
from rebinding.study.engine import Session
from rebinding.surgery.memory import SHARE

Out = TypeVar("Out")


class CostEngine:
    """Rehearses on a device; `tokens` is the length of prompts, None: as with a model's own tokenizer."""

    def __init__(self, device: Device, tokens: int | None = None) -> None:
        self.device = device
        self.tokens = tokens
        self.fake_device = FakeDevice(hollow=True)
        self.fake_device.ledger.rate, self.fake_device.ledger.bandwidth = device.rate, device.bandwidth
        self._known: dict[LoadedModel, Known] = {}
        self._sources: list[Costed] = []

    def loaded_model(self, name: str, *, dtype: str, device: str, store: Store | None) -> Shape:
        found = known(name, self.tokens)
        made = hollow_subject(
            name,
            self.fake_device,
            dtype=check_dtype(dtype),
            tokens=found.tokens,
            budget=self._left,
            config=found.config,
        )
        self._known[made] = found
        return made

    def session(self, loaded_model: LoadedModel, store: Store | None, *, first: int = 0) -> Session:
        found, bench = self._known[loaded_model], Workbench(loaded_model, first=first)
        source = Costed(bench, self.fake_device, found.heads)
        self._sources.append(source)
        return Session(loaded_model, bench.prompts, source, found.form)

    def shaped(self, session: Session) -> Shaped:
        """What is known of the model of a session."""
        found = self._known[session.loaded_model]
        assert isinstance(session.source, Costed)
        return Shaped(found.name, found.tokens, session.source.weights, found.whose)

    def finish(self, job: Callable[[], Out]) -> Out:
        return job()

    def prepare(self, jobs: Iterable[Callable[[], object]]) -> None:
        """Nothing is computed, so nothing can be computed beforehand."""

    def close(self) -> None:
        """There is nobody to let go."""

    def _left(self) -> int:
        """The bytes that a batch may take, beside what a run has kept by then."""
        kept = REMEMBERED + sum(source.absent for source in self._sources)
        return int(max(0, self.device.memory - self.fake_device.ledger.live[pretended()] - kept) * SHARE)
